"""A session that resumes with the other servers if one fails, and uses it again once it answers.

docs/contributors/protocol.md, "Failing over", explains the protocol, and why no sum is wrong.
"""
