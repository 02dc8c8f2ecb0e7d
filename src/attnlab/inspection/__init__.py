"""Look inside any module: attention maps, reach, cost."""
