"""Multiple choice over long articles: RACE, middle and high school."""
