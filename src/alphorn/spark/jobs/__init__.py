"""Jobs on the data of a cluster. Each module has a pure heart, tables in and tables out, and a thin runner."""
