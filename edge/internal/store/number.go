package store

import "context"

// NextEpoch is the epoch of a new session with the cloud: higher than every one before, also those of a store that was lost. It is on the disk
// when NextEpoch returns.
func (s *Store) NextEpoch(ctx context.Context) (uint64, error) {
	var epoch uint64
	err := s.Update(ctx, func(t *Tx) error {
		last, err := t.Number(Epoch)
		if err != nil {
			return err
		}
		epoch = max(last+1, uint64(max(s.config.Now().UnixMilli(), 0)))
		return t.SetNumber(Epoch, epoch)
	})
	return epoch, err
}
