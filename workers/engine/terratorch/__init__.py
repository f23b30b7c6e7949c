"""The runner `terratorch`: Prithvi and the other networks that TerraTorch builds."""
