"""Long runs: everything together on one node and on three, checked sample by sample and watched for growth."""
