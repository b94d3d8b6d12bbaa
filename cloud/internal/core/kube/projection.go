package kube

// Projection returns an empty store of the same collection, for a version of its objects that a
// caller makes for some edges. The version of an object there is a digest of its content
// (contentVersion): a change of other parts is no change for those edges.
func (s *Store) Projection() *Store {
	e := *s.encoder
	e.content = true
	return newStore(s.resource, &e)
}

// Complete marks the store as holding the whole collection from now on.
func (s *Store) Complete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSynced {
		s.isSynced = true
		close(s.synced)
	}
}
