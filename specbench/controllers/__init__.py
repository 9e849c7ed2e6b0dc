"""When drafting stops: rules over drafted tokens only, independent of who drafts."""
