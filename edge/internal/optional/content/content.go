// Package content gets the content of applications to the device: container images through the
// container runtime, disk images over HTTP.
//
// It owns the folder of disk images, in which each file is named by its SHA-256, and exists only
// once it is complete and verified. It refuses a file of another digest, one that is longer than
// MaxBytes, and one that the disk has no space for, also if the server sends no Content-Length: the
// free space stays above the kubelet's eviction thresholds. It dials no address that its guard
// refuses: the author of an EdgeApp chooses the source. A partial download is continued.
// Content is removed by Prune alone. A Store may be used by many goroutines; two must not fetch the
// same file at once.
package content

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// MaxBytes bounds one disk image.
	MaxBytes = 256 << 30
	// spare must stay free on the disk, in bytes, and spareShare in addition, in hundredths
	// of it: the kubelet evicts pods below 10 % (nodefs.available) and 15 % (imagefs.available).
	spare      = 64 << 20
	spareShare = 16
	// look is how many bytes are written between two checks of the free space.
	look = 8 << 20
	// downloadTimeout bounds one try of a download, which the next one continues.
	downloadTimeout = 12 * time.Hour
	// stalled is how long a server may be silent.
	stalled = time.Minute
	// pullTimeout bounds one pull of a container image: a thin link takes hours for a large one.
	pullTimeout = 6 * time.Hour
)

// Images is the container runtime's images; its own API (CRI).
type Images interface {
	ImageStatus(ctx context.Context, image *runtimev1.ImageSpec, verbose bool) (*runtimev1.ImageStatusResponse, error)
	PullImage(ctx context.Context, image *runtimev1.ImageSpec, auth *runtimev1.AuthConfig, sandbox *runtimev1.PodSandboxConfig) (string, error)
	Close(ctx context.Context) error
}

// Store is the content of this device.
type Store struct {
	dir    string
	client *http.Client
	images func(context.Context) (Images, error)
	disk   func(dir string) (free, size int64, err error)
}

// errNoRoom: the disk has no room for the content.
var errNoRoom = errors.New("the disk has no room")

// New makes a Store in a folder, which it makes on first use. images opens the container runtime;
// it is called for each container image. guard refuses addresses that a source leads to, also by a
// redirect; nil: none.
func New(dir string, images func(context.Context) (Images, error), guard func(netip.Addr) error) *Store {
	return &Store{dir: dir, images: images, disk: statfs, client: &http.Client{Transport: newTransport(guard)}}
}

// transport leads each request, of a redirect too, to the proxy that the device's environment names
// for it, or by way of the guard to the address itself.
type transport struct{ direct, proxied *http.Transport }

func newTransport(guard func(netip.Addr) error) *transport {
	make1 := func() *http.Transport {
		return &http.Transport{ResponseHeaderTimeout: stalled, DisableKeepAlives: true, DisableCompression: true}
	}
	t := &transport{make1(), make1()}
	t.proxied.Proxy = http.ProxyFromEnvironment
	dialer := &net.Dialer{Timeout: stalled}
	if guard != nil {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return guard(to.Addr())
		}
	}
	t.direct.DialContext = dialer.DialContext
	return t
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if proxy, err := http.ProxyFromEnvironment(r); err != nil || proxy != nil {
		return t.proxied.RoundTrip(r)
	}
	return t.direct.RoundTrip(r)
}

// Path is where a disk image is once it was fetched.
func (s *Store) Path(sha256 string) string { return filepath.Join(s.dir, sha256) }

// Fetch returns once the content is on the device.
func (s *Store) Fetch(ctx context.Context, c v1alpha1.AppContent) error {
	if c.Type == v1alpha1.ContentContainerImage {
		return s.pull(ctx, c.Source)
	}
	return s.download(ctx, c.Source, c.SHA256)
}

func (s *Store) pull(ctx context.Context, reference string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	images, err := s.images(ctx)
	if err != nil {
		return fmt.Errorf("connecting to the container runtime: %w", err)
	}
	defer func() { _ = images.Close(context.WithoutCancel(ctx)) }() // all answers are here
	spec := &runtimev1.ImageSpec{Image: reference}
	status, err := images.ImageStatus(ctx, spec, false)
	if err != nil {
		return fmt.Errorf("asking for image %s: %w", reference, err)
	}
	if status.GetImage() != nil {
		return nil
	}
	if _, err := images.PullImage(ctx, spec, nil, nil); err != nil {
		return fmt.Errorf("pulling image %s: %w", reference, err)
	}
	return nil
}

func (s *Store) download(ctx context.Context, source, digest string) error {
	if raw, err := hex.DecodeString(digest); err != nil || len(raw) != sha256.Size {
		return fmt.Errorf("%q is no SHA-256", digest)
	}
	if _, err := os.Stat(s.Path(digest)); err == nil {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("making the folder of content: %w", err)
	}
	part := s.Path(digest) + partSuffix
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	if err := s.fetch(ctx, source, part); err != nil {
		if errors.Is(err, errNoRoom) { // it would take the room that others need
			err = errors.Join(err, os.Remove(part))
		}
		return fmt.Errorf("fetching %s: %w", source, err)
	}
	got, err := digestOf(part)
	if err != nil {
		return fmt.Errorf("reading the fetched content: %w", err)
	}
	if got != digest {
		// Started again next time: continuing would never mend it.
		return errors.Join(fmt.Errorf("%s has the SHA-256 %s, not %s", source, got, digest), os.Remove(part))
	}
	if err := os.Rename(part, s.Path(digest)); err != nil {
		return fmt.Errorf("storing the fetched content: %w", err)
	}
	return nil
}

// fetch continues a file where it ends (RFC 9110, 14.2).
func (s *Store) fetch(ctx context.Context, source, part string) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	have, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, source, http.NoBody)
	if err != nil {
		return err
	}
	if have > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it is no longer read
	switch answer.StatusCode {
	case http.StatusOK: // from the beginning, whatever was asked for
		if err := file.Truncate(0); err != nil {
			return err
		}
		if _, err := file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		have = 0
	case http.StatusPartialContent:
	case http.StatusRequestedRangeNotSatisfiable:
		return nil // it is complete already, or its digest will show
	default:
		return fmt.Errorf("the server answers %s", answer.Status)
	}
	if err := s.room(answer.ContentLength); err != nil {
		return err
	}
	watchdog := time.AfterFunc(stalled, func() { cancel(fmt.Errorf("the server has sent nothing for %v", stalled)) })
	defer watchdog.Stop()
	body := &alive{io.LimitReader(answer.Body, MaxBytes-have+1), func() { watchdog.Reset(stalled) }}
	n := int64(0)
	for {
		more, err := io.CopyN(file, body, look)
		n += more
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		if err := s.room(0); err != nil {
			return err
		}
	}
	if have+n > MaxBytes {
		return fmt.Errorf("it is longer than %d bytes", int64(MaxBytes))
	}
	return file.Sync()
}

// room refuses content that does not fit; a length of -1 is not known beforehand.
func (s *Store) room(length int64) error {
	free, size, err := s.disk(s.dir)
	if err != nil {
		return fmt.Errorf("looking for room: %w", err)
	}
	if keep := spare + size/100*spareShare; free-max(length, 0) < keep {
		return fmt.Errorf("%w: %d bytes are free, %d come, and %d must stay free", errNoRoom, free, max(length, 0), keep)
	}
	return nil
}

// statfs returns the free space of a disk and its size (statfs(2)).
func statfs(dir string) (free, size int64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, 0, err
	}
	return int64(fs.Bavail) * fs.Bsize, int64(fs.Blocks) * fs.Bsize, nil
}

const partSuffix = ".part"

// Prune removes the disk images, whole or not, that are not of these digests.
func (s *Store) Prune(keep map[string]bool) (removed []string, err error) {
	files, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for content: %w", err)
	}
	var errs []error
	for _, f := range files {
		digest := strings.TrimSuffix(f.Name(), partSuffix)
		if raw, bad := hex.DecodeString(digest); bad != nil || len(raw) != sha256.Size || keep[digest] {
			continue
		}
		if err := os.Remove(filepath.Join(s.dir, f.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, f.Name())
	}
	return removed, errors.Join(errs...)
}

// alive records that data was read.
type alive struct {
	io.Reader
	note func()
}

func (a *alive) Read(p []byte) (int, error) {
	n, err := a.Reader.Read(p)
	if n > 0 {
		a.note()
	}
	return n, err
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was only read
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
