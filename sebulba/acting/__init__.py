"""How `T` env steps are acted: cycles, their buffers and statistics, and the actor around them."""
