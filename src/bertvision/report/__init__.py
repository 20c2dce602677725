"""From scores to something a person looks at: figures, the single-file HTML report, model cards."""
