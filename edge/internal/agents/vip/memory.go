package vip

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// stateKey is under which everything is kept.
const stateKey = "state"

// change changes what is kept. Where the store does not take it, this process goes by it all the
// same, and keep tries again: a disk without room must not keep addresses down. But for an address
// that is about to be tried, since of that the store has to know first.
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

// save keeps what outlives a restart. The caller holds orders.
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

// keep saves what the store has not taken yet, if there is anything.
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
		return fmt.Errorf("reading what is kept: %w", err)
	}
	if bytes.Equal(raw, all[stateKey]) {
		return nil
	}
	return a.save(ctx, m)
}

// recordPreBoot notes, once a boot, which containers that the store calls ready were started before
// it. What was clear in an earlier boot is asked for again.
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
		return fmt.Errorf("reading what an earlier run left: %w", err)
	}
	raw := all[stateKey]
	a.memory = memory{}
	a.loaded = true
	if len(raw) > 0 && json.Unmarshal(raw, &a.memory) != nil {
		a.memory = memory{} // of another edgecore; nothing in it can't be found out again
	}
	return nil
}
