package join

import (
	"crypto"
	"encoding/pem"
	"errors"

	"github.com/skerry-io/skerry/common/pki"
)

// A Sealer seals keys, so that a stolen disk doesn't reveal them; a *diskkey.Key.
type Sealer interface {
	// Seal seals content under a name.
	Seal(name string, content []byte) ([]byte, error)
	// Open opens content sealed under that name.
	Open(name string, sealed []byte) ([]byte, error)
}

// sealedBlock is the type of a PEM block with a sealed key.
const sealedBlock = "SKERRY SEALED KEY"

// errInTheClear is returned for an identity from a time without sealing. Sealing it now would leave
// the old key in unused blocks of the disk.
var errInTheClear = errors.New("its private key is on the disk in the clear, which modules.metaManager.encryption forbids: run `edgecore reset`, which discards that key")

// encodeKey is a key as the file of that name holds it.
func encodeKey(seal Sealer, name string, key crypto.Signer) ([]byte, error) {
	text, err := pki.EncodeKey(key)
	if err != nil || seal == nil {
		return text, err
	}
	sealed, err := seal.Seal(name, text)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: sealedBlock, Bytes: sealed}), nil
}

// decodeKey finds the key in such a file.
func decodeKey(seal Sealer, name string, data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	switch {
	case block == nil || block.Type != sealedBlock:
		if seal != nil {
			return nil, errInTheClear
		}
		return pki.ParseKey(data)
	case seal == nil:
		return nil, errors.New("its key is sealed, and modules.metaManager.encryption names no key to open it")
	}
	text, err := seal.Open(name, block.Bytes)
	if err != nil {
		return nil, err
	}
	return pki.ParseKey(text)
}

// splitPEM splits a file into its certificates and the rest.
func splitPEM(data []byte) (certificates, rest []byte) {
	rest = data
	for {
		block, after := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" {
			return data[:len(data)-len(rest)], rest
		}
		rest = after
	}
}
