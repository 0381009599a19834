"""Check whether compiled code is still valid for a call: guards of modules and of code, and Dynamo's guards."""
