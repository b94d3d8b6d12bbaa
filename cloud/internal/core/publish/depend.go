package publish

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/dependency"
)

func newDependencies(s *session, i *interest) *dependencies {
	d := &dependencies{
		session: s, interest: i, pods: map[kube.Key][]kube.Ref{}, refs: map[kube.Ref]*need{}, pending: map[kube.Ref]struct{}{},
	}
	d.kinds(func(r *resourceSync) {
		if r.state == streaming {
			s.markSynced(r, i)
		}
	})
	pods := s.resource(kube.Pods)
	d.podSync = pods
	d.entry = &entry{pods, &kube.Selection{Node: string(s.node)}}
	pods.openFeed().add(d.entry)
	return d
}

// close gives everything back. Objects that the edge held on their account are queued for deletion.
func (d *dependencies) close() {
	d.podSync.feed.remove(d.entry)
	for key := range d.pods {
		d.update(key, nil)
	}
}

// mark is called when another interest takes the place of d's.
func (d *dependencies) mark() {
	d.kinds(func(r *resourceSync) {
		if r.state == streaming {
			d.session.markSynced(r, d.interest)
		}
	})
}

// settled reports whether all that the pods need has been compared, and the differences were sent.
func (d *dependencies) settled() bool {
	all := true
	d.kinds(func(r *resourceSync) { all = all && (r.state == streaming || r.unavailable()) })
	return all
}

// scan reads the pods once they are synced, and releases those whose dependencies are complete.
func (d *dependencies) scan() {
	pods := d.podSync
	if !d.scanned {
		if !pods.feed.store.HasSynced() {
			pods.await()
			return
		}
		d.scanned = true
		d.rescan()
	}
	d.complete()
	var ready []kube.Key
	for key := range pods.blockedPods {
		o, _ := pods.look(key)
		if d.ready(d.pods[key]) && d.sendable(d.pods[key], o != nil && o.Started) {
			ready = append(ready, key)
		}
	}
	pods.queue(ready)
}

// rescan makes d that of the pods as they are.
func (d *dependencies) rescan() {
	var all []*kube.Object
	d.podSync.feed.store.Each(d.entry.sel, func(o *kube.Object) bool { all = append(all, o); return true })
	gone := make(map[kube.Key]bool, len(d.pods))
	for key := range d.pods {
		gone[key] = true
	}
	for _, o := range all {
		delete(gone, o.Key)
		d.update(o.Key, o)
	}
	for key := range gone {
		d.update(key, nil)
	}
}

// update sets the references of a pod.
func (d *dependencies) update(key kube.Key, pod *kube.Object) {
	var refs []kube.Ref
	if pod != nil && pod.Node() == string(d.session.node) {
		refs = pod.Refs
	}
	old := d.pods[key]
	for _, ref := range refs { // taken before the old are given back, so that common ones are not let go
		d.acquire(ref)
	}
	for _, ref := range old {
		d.release(ref)
	}
	if len(refs) == 0 {
		delete(d.pods, key)
	} else {
		d.pods[key] = refs
	}
}

func (d *dependencies) acquire(ref kube.Ref) {
	if have, ok := d.refs[ref]; ok {
		have.users++
		return
	}
	s := d.session
	r := s.resourceOf(ref.Resource)
	if r == nil { // the edge, which has listed all that it holds, has no object of it: that is settled
		r = s.resource(ref.Resource)
		r.comparison.begin(nil, nil)
		r.publishState()
	}
	d.refs[ref] = &need{users: 1}
	d.pending[ref] = struct{}{}
	if s.part.objects.Serves(ref) {
		s.hold(ref, r)
	} else {
		r.openFeed().addKey(ref.Key, r)
	}
	if r.state != unsynced {
		r.queue([]kube.Key{ref.Key})
	}
	d.resolve(ref)
}

func (d *dependencies) release(ref kube.Ref) {
	have, ok := d.refs[ref]
	if !ok {
		return
	}
	if have.users--; have.users > 0 {
		return
	}
	s := d.session
	delete(d.refs, ref)
	delete(d.pending, ref)
	r := s.resource(ref.Resource)
	if s.part.objects.Serves(ref) {
		s.unhold(ref)
	} else if r.feed != nil {
		r.feed.removeKey(ref.Key, r)
	}
	if r.state != unsynced {
		r.queue([]kube.Key{ref.Key})
	}
	for _, child := range have.children {
		d.release(child)
	}
}

// resolve reports whether the object of ref is known, and takes its references in turn.
func (d *dependencies) resolve(ref kube.Ref) bool {
	r := d.session.resource(ref.Resource)
	o, known := r.look(ref.Key)
	if !known {
		if r.feed != nil && !r.feed.store.HasSynced() {
			r.await()
			return r.unavailable()
		}
		return false
	}
	delete(d.pending, ref)
	d.expand(ref, o)
	return true
}

func (d *dependencies) expand(ref kube.Ref, o *kube.Object) {
	have, ok := d.refs[ref]
	if !ok {
		return
	}
	var children []kube.Ref
	if o != nil {
		children = d.onNode(o.Refs)
	}
	old := have.children
	have.children = children
	for _, child := range children {
		d.acquire(child)
	}
	for _, child := range old {
		d.release(child)
	}
}

// onNode are the refs of an object, for this node.
func (d *dependencies) onNode(refs []kube.Ref) []kube.Ref {
	if !slices.ContainsFunc(refs, func(r kube.Ref) bool { return r.PerNode }) {
		return refs // shared by all sessions
	}
	own := slices.Clone(refs)
	for i := range own {
		own[i] = own[i].On(string(d.session.node))
	}
	return own
}

// complete reports whether all dependencies are known.
func (d *dependencies) complete() bool {
	if !d.scanned {
		return false
	}
	for ref := range d.pending {
		if !d.resolve(ref) {
			return false
		}
	}
	return true
}

// ready reports whether refs and all below them are known.
func (d *dependencies) ready(refs []kube.Ref) bool {
	for _, ref := range refs {
		if _, pending := d.pending[ref]; pending && !d.resolve(ref) {
			return false
		}
		if have, ok := d.refs[ref]; ok && !d.ready(have.children) {
			return false
		}
	}
	return true
}

// sendable reports whether refs and all below them can be sent in front of a pod, or need not be:
// where a resource isn't compared yet, objects that may be older than the edge's wait for that.
// started: the edge has had the pod's references.
func (d *dependencies) sendable(refs []kube.Ref, started bool) bool {
	for _, ref := range refs {
		have, ok := d.refs[ref]
		if !ok {
			continue
		}
		r := d.session.resource(ref.Resource)
		o, _ := r.look(ref.Key)
		if !have.sent && o != nil && !r.sendable(o) && !(started && r.had(o)) {
			return false
		}
		if !d.sendable(have.children, started) {
			return false
		}
	}
	return true
}

// confirmed reports whether the objects that decide the wanted set of a resource are known to be no
// older than the edge's: pods decide about claims, claims about volumes, pods and
// volumes about Secrets, volumes about attachments.
func (d *dependencies) confirmed(gvr schema.GroupVersionResource) bool {
	above := []schema.GroupVersionResource{kube.Pods}
	switch gvr {
	case kube.Volumes:
		above = append(above, kube.Claims)
	case kube.Secrets, dependency.Attachments:
		above = append(above, kube.Claims, kube.Volumes)
	}
	for _, a := range above {
		if d.session.resource(a).state != streaming {
			return false
		}
	}
	return true
}

// before is called for each key ahead of its change. It maintains the references of pods and their
// dependencies, and puts the dependencies of a pod in front of it; it returns false where that
// isn't known yet, and the pod has to wait.
func (d *dependencies) before(r *resourceSync, key kube.Key, o *kube.Object) bool {
	if ref := (kube.Ref{Resource: r.gvr, Key: key}); d.concerns(r.gvr) && d.has(ref) {
		d.refs[ref].sent = true
		delete(d.pending, ref)
		d.expand(ref, o)
		return true
	}
	if r.gvr != kube.Pods {
		return true
	}
	d.update(key, o)
	if o == nil || !r.wants(o) {
		return true
	}
	refs := d.pods[key]
	if !d.ready(refs) || !d.sendable(refs, o.Started) {
		return false
	}
	d.ahead(refs, o.Started)
	return true
}

// ahead sends those of refs that the edge may not have yet. An edge that comes back has the objects
// that a pod needs that it has started, unless that is newer than all that it holds: so a pod that
// has changed in the meantime does not bring along everything that it refers to. The comparison,
// which comes then, finds the errors in that.
func (d *dependencies) ahead(refs []kube.Ref, started bool) {
	s := d.session
	for _, ref := range refs {
		have, ok := d.refs[ref]
		if !ok {
			continue
		}
		r := s.resource(ref.Resource)
		o, _ := r.look(ref.Key)
		s.mu.Lock()
		_, waits := r.dirty[ref.Key]
		if waits = waits && r.sendable(o); waits {
			r.clean(ref.Key)
		}
		s.mu.Unlock()
		if r.state != streaming && (have.sent || o == nil || !r.sendable(o)) && !waits {
			d.ahead(have.children, started) // the comparison, which comes then, finds the edge's missing objects
			continue
		}
		if waits || r.state != streaming {
			s.frame.change(r.proto, ref.Key, o, s.unnamed)
		}
		have.sent = true
		d.ahead(have.children, started)
	}
}
