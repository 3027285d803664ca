"""A relay whose source is another relay: windows come through byte for byte."""
