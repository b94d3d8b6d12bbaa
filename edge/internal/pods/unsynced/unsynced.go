// Package unsynced deletes records of other programs that a power cut has left unreadable.
//
// libcni and the kubelet write some of their files without fsync(2): a file system with delayed
// allocation, such as ext4, may have them empty after a power cut. Both treat such a file as an
// error at each attempt, forever: with an empty result of a CNI plugin containerd can't remove the
// pod's old sandbox (containernetworking/cni issue 1055), and with an empty record of a pull the
// kubelet pulls the image again, which a disconnected device can't. Without the file both go on:
// the network namespaces of an earlier boot are gone, and an image without a record is one that the
// kubelet did not pull.
//
// It owns no file; it deletes those that Records names and that are not JSON, and leaves all
// others. It has no state. Call Delete before the kubelet starts: then nobody writes them.
package unsynced

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CNIResults is where libcni caches the results of plugins (libcni.CacheDir).
const CNIResults = "/var/lib/cni/results"

// Records are files in one directory, whose content is JSON.
type Records struct {
	Dir    string
	Prefix string // of their names
}

// All are the records of a device whose kubelet has that root directory.
func All(kubeletRoot string) []Records {
	pulls := filepath.Join(kubeletRoot, "image_manager") // k8s.io/kubernetes/pkg/kubelet/images/pullmanager
	return []Records{{Dir: CNIResults}, {filepath.Join(pulls, "pulled"), "sha256-"}, {filepath.Join(pulls, "pulling"), "sha256-"}}
}

// maxRecord bounds what is read of a file, in bytes; a larger one is left.
const maxRecord = 1 << 20

// Delete deletes the unreadable records, and returns their paths. After an error it tries the
// others nevertheless.
func Delete(all []Records) (deleted []string, err error) {
	for _, r := range all {
		entries, readErr := os.ReadDir(r.Dir)
		if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("looking for unreadable files: %w", readErr))
		}
		for _, e := range entries {
			path := filepath.Join(r.Dir, e.Name())
			if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), r.Prefix) {
				continue
			}
			good, readErr := readable(path)
			if readErr == nil && !good {
				if readErr = os.Remove(path); readErr == nil {
					deleted = append(deleted, path)
				}
			}
			if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
				err = errors.Join(err, readErr)
			}
		}
	}
	return deleted, err
}

// readable reports whether a file is JSON, or too large to tell.
func readable(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", path, err)
	}
	return len(raw) > maxRecord || json.Valid(raw), nil
}
