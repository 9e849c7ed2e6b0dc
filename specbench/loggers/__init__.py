"""Who hears about a run. To add one: a module with a Logger, a branch below, a YAML file in conf/logger."""

from __future__ import annotations

from specbench.config import RunConfig
from specbench.loggers.base import Logger, Loggers
from specbench.loggers.console import ConsoleLogger, render

__all__ = ["Logger", "build_logger", "render"]


def build_logger(config: RunConfig) -> Logger:
    """The logger that `logger=...` names; ConfigError when W&B is to be used online without a login."""
    if config.logger.name == "none":
        return Loggers()
    if config.logger.name == "console" or config.logger.mode == "disabled":
        return Loggers(ConsoleLogger())
    from specbench.loggers.wandb import WandbLogger, check_login  # late: importing wandb takes a second

    if config.logger.mode == "online":
        check_login()
    return Loggers(ConsoleLogger(), WandbLogger())
