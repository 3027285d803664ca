"""What a batch is: how far it reaches, and what each task reads."""
