"""Pictures of forecasts; each function returns a matplotlib figure and never opens a window."""

from ctsattn.plotting.attention import (
    AttentionDensity,
    AttentionShares,
    attention_density,
    attention_shares,
    watch_attention,
)
from ctsattn.plotting.evaluation import plot_calibration, plot_error_by_elapsed, plot_losses
from ctsattn.plotting.forecast import plot_cross_validation, plot_forecast
from ctsattn.plotting.lookback import plot_attention, plot_attention_density

__all__ = [
    "AttentionDensity",
    "AttentionShares",
    "attention_density",
    "attention_shares",
    "plot_attention",
    "plot_attention_density",
    "plot_calibration",
    "plot_cross_validation",
    "plot_error_by_elapsed",
    "plot_forecast",
    "plot_losses",
    "watch_attention",
]
