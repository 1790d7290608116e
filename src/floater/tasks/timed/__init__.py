"""What tasks with real-valued times share: settings, tables, model, folds, measures, the task."""
