package store

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apiserver/pkg/storage/value/encrypt/aes"
)

// openKey reads the key, or creates it for a new store without one.
func (s *Store) openKey(isNew bool) error {
	key := s.config.Key
	if key == nil {
		var err error
		if key, err = s.keyOfFile(isNew); err != nil {
			return err
		}
	}
	// A key of its own for each record, derived from a random nonce: no bound on how many records
	// one key may seal.
	var err error
	if s.seal, err = aes.NewHKDFExtendedNonceGCMTransformer(key); err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	return nil
}

func (s *Store) keyOfFile(isNew bool) ([]byte, error) {
	text, err := os.ReadFile(s.config.KeyFile)
	if errors.Is(err, os.ErrNotExist) && isNew {
		text, err = makeKey(s.config.KeyFile)
		if err != nil {
			return nil, noRoom(err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: put the key back, or move %s away: the device then gets its objects again from the cloud",
			ErrKey, err, s.config.Path)
	}
	key, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%w: %s does not hold 32 bytes in hexadecimal", ErrKey, s.config.KeyFile)
	}
	return key, nil
}

func makeKey(path string) ([]byte, error) {
	key := make([]byte, 32)
	rand.Read(key) // never fails: crypto/rand ends the process instead
	text := []byte(hex.EncodeToString(key) + "\n")
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("making the store's key: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		os.Remove(tmp)
		return nil, fmt.Errorf("making the store's key: %w", err)
	}
	return text, syncDir(filepath.Dir(path))
}
