package artefactrepo

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/theupdateframework/go-tuf/v2/metadata"

	"github.com/skerry-io/skerry/common/atomicfile"
)

// rootKeys is how many keys root has, and rootThreshold how many of them have to sign.
const rootKeys, rootThreshold = 3, 2

// next is the end of the name of a key that has not replaced another yet.
const next = ".next"

// keys has private keys by their names.
type keys interface {
	get(name string) (ed25519.PrivateKey, error)
	put(name string, key ed25519.PrivateKey) error
	rename(from, to string) error
	// last is the newest version of the metadata that was signed by these keys here, 0 if that is
	// not known. sign records that one is about to be signed, signed that it was.
	last() (int64, error)
	sign(version int64) error
	signed(version int64) error
}

func roles() []string {
	return []string{metadata.ROOT, metadata.TARGETS, metadata.SNAPSHOT, metadata.TIMESTAMP}
}

// namesOf are the names of a role's keys.
func namesOf(role string) (all []string) {
	if role != metadata.ROOT {
		return []string{role}
	}
	for i := range rootKeys {
		all = append(all, fmt.Sprintf("%s-%d", role, i+1))
	}
	return all
}

// generate makes fresh keys for roles.
func generate(to keys, roles ...string) error {
	for _, role := range roles {
		for _, name := range namesOf(role) {
			_, private, err := ed25519.GenerateKey(nil)
			if err != nil {
				return err
			}
			if err := to.put(name, private); err != nil {
				return err
			}
		}
	}
	return nil
}

func load(from keys, names []string) (all []ed25519.PrivateKey, err error) {
	for _, name := range names {
		k, err := from.get(name)
		if err != nil {
			return nil, err
		}
		all = append(all, k)
	}
	return all, nil
}

func addKey(root *metadata.Metadata[metadata.RootType], from keys, role, name string) error {
	private, err := from.get(name)
	if err != nil {
		return err
	}
	key, err := metadata.KeyFromPublicKey(private.Public())
	if err != nil {
		return err
	}
	return root.Signed.AddKey(key, role)
}

// memory has keys in this process.
type memory map[string]ed25519.PrivateKey

func (m memory) get(name string) (ed25519.PrivateKey, error) { return m[name], nil }

func (m memory) put(name string, key ed25519.PrivateKey) error {
	m[name] = key
	return nil
}

func (m memory) rename(from, to string) error {
	m[to] = m[from]
	delete(m, from)
	return nil
}

func (memory) last() (int64, error) { return 0, nil }
func (memory) sign(int64) error     { return nil }
func (memory) signed(int64) error   { return nil }

// files has keys in a directory, as PKCS #8 in PEM.
type files string

func (d files) path(name string) string { return filepath.Join(string(d), name+".pem") }

func (d files) get(name string) (ed25519.PrivateKey, error) {
	raw, err := os.ReadFile(d.path(name))
	if err != nil {
		return nil, fmt.Errorf("reading key %s: %w", name, err)
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("%s is no private key in PEM", d.path(name))
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading key %s: %w", name, err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, errors.New(d.path(name) + " is no Ed25519 key")
	}
	return private, nil
}

func (d files) put(name string, key ed25519.PrivateKey) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(d.path(name), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600)
}

func (d files) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }

// lastFile is the file with the newest version that was signed, or that was about to be.
const (
	lastFile = "last-version"
	unsigned = " begun"
)

func (d files) last() (int64, error) {
	raw, err := os.ReadFile(filepath.Join(string(d), lastFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	text, begun := strings.CutSuffix(strings.TrimSpace(string(raw)), unsigned)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is no version: %w", filepath.Join(string(d), lastFile), err)
	}
	if begun { // whether it was signed is unknown: the one before was
		n--
	}
	return n, nil
}

// sign records a version before it is signed: a disk without room for the file has none of the
// version's metadata either.
func (d files) sign(version int64) error { return d.record(strconv.FormatInt(version, 10) + unsigned) }

func (d files) signed(version int64) error { return d.record(strconv.FormatInt(version, 10)) }

// record writes no file where keys can only be read, as on a medium that is kept in a safe.
func (d files) record(version string) error {
	err := atomicfile.Write(filepath.Join(string(d), lastFile), []byte(version+"\n"), 0o600)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return nil
	}
	return err
}
