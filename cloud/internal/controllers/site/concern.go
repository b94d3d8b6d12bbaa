package site

import (
	"slices"
	"strings"
)

// A site is named by its pool, or by its one node outside of pools.
const (
	poolSite = "pool/"
	nodeSite = "node/"
)

// SiteOf names the site of a node; not known before all nodes and pools are.
func (s *Sites) SiteOf(node string) (site string, known bool) {
	x := s.now()
	if x == nil {
		return "", false
	}
	if g := x.of[node]; g != nil {
		return poolSite + g.pool.Name, true
	}
	return nodeSite + node, true
}

// Concerns reports whether a node is of a site, or of a pool that the site's reaches.
func (s *Sites) Concerns(site, node string) (own, reached bool) {
	x := s.now()
	if x == nil {
		return false, false
	}
	if one, ok := strings.CutPrefix(site, nodeSite); ok {
		return one == node, false
	}
	pool, _ := strings.CutPrefix(site, poolSite)
	g := x.of[node]
	if g == nil {
		return false, false
	}
	if g.pool.Name == pool {
		return true, false
	}
	return false, slices.Contains(x.reaches[pool], g.pool.Name)
}

// Title is a site's name for people.
func (s *Sites) Title(site string) string {
	_, name, _ := strings.Cut(site, "/")
	return name
}

// OnChange has f called after each change of a site's members. It is called before Run.
func (s *Sites) OnChange(f func()) { s.onChange = f }

func (s *Sites) now() *Index {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}
