"""Check whether compiled code still holds for a call: watches of modules and code, and Dynamo's guards."""
