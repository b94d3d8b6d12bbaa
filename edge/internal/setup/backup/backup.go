// Package backup packs a device's identity and store into one archive, and unpacks it.
//
// It owns the archive's form: a .tar.gz that begins with a manifest. It refuses an archive that is
// not whole, of another form, or with any file but those of an identity and a store; nothing is
// written outside of the directory that it is given. What is in it is secret: who has the archive
// is the device to the cloud. Its functions keep no state.
package backup

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	// Format is the archive's form that this build writes and reads.
	Format = 1
	// Store, Key and Identity are the names of the store's file, of its key's, and of the
	// identity's directory.
	Store    = "store.db"
	Key      = "store.key"
	Identity = "identity"

	manifestFile = "manifest.json"
	maxManifest  = 16 << 10
	maxFiles     = 64
	maxBytes     = 4 << 30 // of all files, unpacked
)

// Manifest tells what is in an archive.
type Manifest struct {
	Format  int       `json:"format"`
	Node    string    `json:"node"`
	Machine string    `json:"machine,omitempty"` // a digest of the hardware's name; empty: unknown
	Version string    `json:"version"`           // of edgecore
	Time    time.Time `json:"time"`
}

// identityFile is a file of the identity.
var identityFile = regexp.MustCompile(`^identity/[a-z0-9][a-z0-9.-]{0,63}$`)

// known reports whether an archive may have a file of that name.
func known(name string) bool {
	return name == Store || name == Key || identityFile.MatchString(name)
}

// IdentityFiles lists the files of an identity's directory by their names in an archive. Hidden
// ones are left out: locks, and temporary files of a power cut (package atomicfile).
func IdentityFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the identity: %w", err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, Identity+"/"+e.Name())
		}
	}
	return names, nil
}

// Pack writes an archive of files, by the names that they have in it.
func Pack(w io.Writer, m Manifest, files map[string]string, names []string) error {
	m.Format = Format
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	raw, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the manifest: %w", err)
	}
	if err := archive.WriteHeader(&tar.Header{Name: manifestFile, Mode: 0o600, Size: int64(len(raw)), ModTime: m.Time}); err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}
	if _, err := archive.Write(raw); err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}
	for _, name := range names {
		if !known(name) {
			return fmt.Errorf("%s is no file of a backup", name)
		}
		if err := pack(archive, name, files[name]); err != nil {
			return fmt.Errorf("writing %s into the backup: %w", files[name], err)
		}
	}
	return errors.Join(archive.Close(), zip.Close())
}

func pack(archive *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: info.Size(), ModTime: info.ModTime()}); err != nil {
		return err
	}
	_, err = io.Copy(archive, f)
	return err
}

// Unpack writes the files of an archive into a directory.
func Unpack(r io.Reader, dir string) (m Manifest, err error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return m, fmt.Errorf("this is no backup: %w", err)
	}
	archive := tar.NewReader(zip)
	head, err := archive.Next()
	if err != nil || head.Name != manifestFile || head.Size > maxManifest {
		return m, errors.New("this is no backup: it does not begin with a manifest")
	}
	if err := json.NewDecoder(archive).Decode(&m); err != nil {
		return m, fmt.Errorf("reading the manifest: %w", err)
	}
	if m.Format != Format {
		return m, fmt.Errorf("the backup has format %d, of edgecore %q; this edgecore reads %d", m.Format, m.Version, Format)
	}
	left := int64(maxBytes)
	for n := 0; ; n++ {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
			return m, fmt.Errorf("the backup is not whole: %w", err)
		case n >= maxFiles, head.Typeflag != tar.TypeReg, !known(head.Name), head.Size > left:
			return m, fmt.Errorf("the backup has %.100q of %d bytes, which no backup has", head.Name, head.Size)
		}
		left -= head.Size
		if err := unpack(archive, filepath.Join(dir, filepath.FromSlash(head.Name))); err != nil {
			return m, err
		}
	}
	if _, err := io.Copy(io.Discard, zip); err != nil { // reads the checksum
		return m, fmt.Errorf("the backup is not whole: %w", err)
	}
	return m, nil
}

func unpack(r io.Reader, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("unpacking the backup: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("the backup has %s twice", filepath.Base(path))
	}
	if err != nil {
		return fmt.Errorf("unpacking the backup: %w", err)
	}
	_, err = io.Copy(f, r)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrChecksum) {
		err = fmt.Errorf("the backup is not whole: %w", err)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("unpacking %s: %w", filepath.Base(path), err)
	}
	return nil
}
