package kube

// Projection returns an empty store of the same collection, for what a caller makes of its objects
// for some edges. The version of an object there stands for its content (contentVersion): what
// those edges don't get of it is no change for them.
func (s *Store) Projection() *Store {
	e := *s.encoder
	e.content = true
	return newStore(s.resource, &e)
}

// Complete says that the store holds the whole collection from now on.
func (s *Store) Complete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isSynced {
		s.isSynced = true
		close(s.synced)
	}
}
