package store

import (
	"bytes"
	"context"
)

// Module is the state of one module in the store, by keys of its own. Its methods may be called by
// many goroutines at once.
type Module struct {
	store *Store
	name  string
}

// Module is the state of the module of that name.
func (s *Store) Module(name string) *Module { return &Module{s, name} }

// Load reads the last stored state; nil if there is no such key.
func (m *Module) Load(key string) (state []byte, err error) {
	err = m.store.View(func(tx *Tx) error {
		state, err = tx.State(m.name, key)
		return err
	})
	return state, err
}

// Keep writes state; nil deletes it. It is on the disk when Keep returns nil.
func (m *Module) Keep(ctx context.Context, key string, state []byte) error {
	return m.store.Update(ctx, func(tx *Tx) error { return tx.SetState(m.name, key, state) })
}

// KeepSealed is Keep for secrets: the state is sealed before it touches the disk.
func (m *Module) KeepSealed(ctx context.Context, key string, state []byte) error {
	return m.store.Update(ctx, func(tx *Tx) error { return tx.SealState(m.name, key, state) })
}

// SetState writes a module's state; nil deletes it.
func (t *Tx) SetState(module, key string, state []byte) error {
	path := [][]byte{bucketModules, []byte(module)}
	if state == nil {
		return t.delete(path, []byte(key))
	}
	return t.putBytes(path, []byte(key), false, state)
}

// SealState is SetState for secrets.
func (t *Tx) SealState(module, key string, state []byte) error {
	return t.putBytes([][]byte{bucketModules, []byte(module)}, []byte(key), true, state)
}

// State reads a module's state; nil if it was never written.
func (t *Tx) State(module, key string) ([]byte, error) {
	b, err := t.get([][]byte{bucketModules, []byte(module)}, []byte(key))
	return bytes.Clone(b), err
}

// States calls do for all keys of a module.
func (t *Tx) States(module string, do func(key string, state []byte) error) error {
	return t.each([][]byte{bucketModules, []byte(module)}, func(key, payload []byte) error { return do(string(key), bytes.Clone(payload)) })
}
