package vip

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// stateKey is the key of the stored state.
const stateKey = "state"

// change changes the stored state. If the store does not take it, this process uses it
// nevertheless, and keep tries again: a full disk must not keep addresses down. The exception is an
// address that is about to be tried: that must be stored first.
func (a *Agent) change(ctx context.Context, edit func(*memory)) error {
	a.orders.Lock()
	defer a.orders.Unlock()
	a.mu.Lock()
	before := a.memory
	a.mu.Unlock()
	m := before
	edit(&m)
	err := a.save(ctx, m)
	if err == nil {
		return nil
	}
	if len(m.Trying) > 0 {
		m.Trying = before.Trying
	}
	a.mu.Lock()
	a.memory = m
	a.mu.Unlock()
	return err
}

// save stores the state that survives a restart. The caller holds orders.
func (a *Agent) save(ctx context.Context, m memory) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("keeping the state: %w", err)
	}
	if err := a.cfg.Memory.Save(ctx, map[string][]byte{stateKey: raw}); err != nil {
		return fmt.Errorf("keeping the state: %w", err)
	}
	a.mu.Lock()
	a.memory = m
	a.mu.Unlock()
	return nil
}

// keep saves changes that the store has not taken yet.
func (a *Agent) keep(ctx context.Context) error {
	a.orders.Lock()
	defer a.orders.Unlock()
	a.mu.Lock()
	m := a.memory
	a.mu.Unlock()
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("keeping the state: %w", err)
	}
	all, err := a.cfg.Memory.Load()
	if err != nil {
		return fmt.Errorf("reading the saved state: %w", err)
	}
	if bytes.Equal(raw, all[stateKey]) {
		return nil
	}
	return a.save(ctx, m)
}

// recordPreBoot records, once a boot, which ready containers in the store were started before it.
// Addresses found free in an earlier boot are probed again.
func (r *run) recordPreBoot(ctx context.Context) error {
	r.mu.Lock()
	known := r.memory.BootID == r.cfg.BootID
	r.mu.Unlock()
	if known {
		return r.keep(ctx)
	}
	var ids []string
	for id := range preBootContainers(r.cfg.BootTime(), r.pods.List()) {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return r.change(ctx, func(m *memory) { m.BootID, m.PreBootContainers, m.Clear = r.cfg.BootID, ids, nil })
}

func (a *Agent) load() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	all, err := a.cfg.Memory.Load()
	if err != nil {
		return fmt.Errorf("reading the state of an earlier run: %w", err)
	}
	raw := all[stateKey]
	a.memory = memory{}
	a.loaded = true
	if len(raw) > 0 && json.Unmarshal(raw, &a.memory) != nil {
		a.memory = memory{} // of another edgecore; all of it can be determined again
	}
	return nil
}
