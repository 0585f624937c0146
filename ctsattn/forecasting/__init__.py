"""The estimator and its training options."""

from ctsattn.forecasting.forecaster import Forecaster
from ctsattn.forecasting.training import Training, TrainingLog, TrainingWarning
from ctsattn.forecasting.tuning import Tuned, tune

__all__ = ["Forecaster", "Training", "TrainingLog", "TrainingWarning", "Tuned", "tune"]
