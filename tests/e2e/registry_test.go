package e2e_test

import (
	"net"
	"net/http"
	"path"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/registry"
)

// newRegistry makes the image of a program of this repository.
func (s *system) newRegistry(program string) *registry.Registry {
	s.T.Helper()
	r, err := registry.New(s.T.Context(), s.Root, s.T.TempDir(), program, path.Base(program))
	s.Check(err)
	return r
}

// serve has the registry on a device until the test ends. A boot ends it too.
func (s *system) serve(node string, r *registry.Registry) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	var l net.Listener
	s.Check(h.Do(func() (err error) { l, err = net.Listen("tcp", registry.Address); return err }))
	server := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	s.T.Cleanup(func() { _ = server.Close() })
}
