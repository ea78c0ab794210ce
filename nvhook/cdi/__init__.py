"""Specs for engines that know CDI."""
