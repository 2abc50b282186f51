"""The module that the entry point names: it registers the service."""

from noetic_py.plugins import ServiceRegistry, hookimpl


@hookimpl
def register_services(registry: ServiceRegistry) -> None:
    """Give `Tides` to runs and harnesses that bring none of their own."""
    from .service import Tides

    registry.service(Tides, Tides())
