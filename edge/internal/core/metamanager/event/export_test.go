package event

// Unwritten is how many changes the disk lacks.
func (r *Buffer) Unwritten() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.dirty)
}
