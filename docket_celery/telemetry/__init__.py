"""What the engine reports about itself: a small catalogue of facts, and one hook that receives them."""
