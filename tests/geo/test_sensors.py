"""The table of sensors agrees with the common names of wavelengths."""

from __future__ import annotations

from penstock.processors.geo.read.sensors import SENSORS, WAVELENGTHS


def test_each_sensors_wavelengths_give_its_common_names() -> None:
    for sensor in SENSORS:
        for code, band in sensor.bands.items():
            within = [kind for kind, (low, high) in WAVELENGTHS.items() if low <= band.wavelength_nm < high]
            assert not within or band.kinds[0] in (*within, "nir08", "pan", "lwir"), (sensor.name, code)
