"""The conformance kit: what ddlp is tested with, for the tests of your own devices, policies and loops.

virtual   an asyncio event loop in which waiting takes no time
scripted  a device, a carry and an accelerator that do what their script says, faults included
laws      exactly once, cancelled everywhere, nothing left behind
simulate  whole epochs of the real engine and policies
theory    how long they should take
"""
