package operationset

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// keepEnded is how long an operation stays after its end at least, and its wave's soak if that
	// is longer: a device may still report that it went back. keepUpgrade is longer than the
	// probation of a new version (docs/fleet.md).
	keepEnded   = 10 * time.Minute
	keepUpgrade = 25 * time.Hour
	// maxText bounds the text of a failure in a Node's annotation, in bytes.
	maxText = 128
)

// Reasons of results that the device did not report.
const (
	reasonDeadline  = "DeadlineExceeded"
	reasonCancelled = "Cancelled" // by neither the set nor its abort: an operator cancelled this one
	reasonFull      = "TooManySets"
	reasonUnread    = "InvalidAnnotation"
)

// claim is the right to operations of one kind on a node, which one set has alone.
type claim struct {
	node string
	kind v1alpha1.OperationType
}

// planner is one call of Plan.
type planner struct {
	State
	changes Changes
	sets    map[types.UID]*Set
	byNode  map[string][]*Operation
	nodes   map[string]*Node
	pools   map[string][]string // by node
	claimed map[claim]*Set
	taken   map[string]bool // nodes with an operation of a set
	busy    map[string]bool // nodes with any operation that has not ended
	free    int             // of MaxOperationsAtOnce
}

// Plan computes the changes that bring the objects of s to the sets' desired state.
func Plan(s State) *Changes {
	p := &planner{
		State: s, sets: map[types.UID]*Set{}, byNode: map[string][]*Operation{}, nodes: map[string]*Node{}, pools: map[string][]string{},
		claimed: map[claim]*Set{}, taken: map[string]bool{}, busy: map[string]bool{}, free: v1alpha1.MaxOperationsAtOnce,
	}
	p.changes.Gone = map[types.UID]string{}
	p.index()
	sets := slices.SortedFunc(slices.Values(s.Sets), older)
	for i, set := range sets {
		if i >= v1alpha1.MaxOperationSets {
			p.report(set, stalled(set, reasonFull, fmt.Sprintf("the cluster has more than %d NodeOperationSets: delete older ones", v1alpha1.MaxOperationSets)))
			continue
		}
		p.set(set)
	}
	p.sweep()
	return &p.changes
}

func (p *planner) index() {
	for _, s := range p.Sets {
		p.sets[s.UID] = s
	}
	for _, n := range p.Nodes {
		p.nodes[n.Name] = n
	}
	for _, o := range p.Operations {
		p.byNode[o.Node] = append(p.byNode[o.Node], o)
		if o.Stage == Ended {
			continue
		}
		p.busy[o.Node] = true
		if o.Origin == nil {
			continue
		}
		p.taken[o.Node] = true
		// One that was cancelled, or whose set was deleted, may stay for months on a node without a
		// link.
		if n := p.nodes[o.Node]; n != nil && (n.linked() || !o.Cancel && p.sets[types.UID(o.Origin.UID)] != nil) {
			p.free--
		}
	}
	for _, n := range p.Nodes {
		for _, pool := range p.Pools {
			if pool.Matches(n.Labels) {
				p.pools[n.Name] = append(p.pools[n.Name], pool.Name)
			}
		}
		if own := cmp.Or(n.Labels[v1alpha1.NodePoolLabel], n.Labels[v1alpha1.OpenYurtNodePoolLabel]); own != "" && !slices.Contains(p.pools[n.Name], own) {
			p.pools[n.Name] = append(p.pools[n.Name], own)
		}
	}
}

// set plans one set.
func (p *planner) set(s *Set) {
	matches, err := p.selector(s)
	if err != nil {
		p.report(s, stalled(s, "InvalidSelector", err.Error()))
		return
	}
	v := &view{set: s}
	for _, n := range p.Nodes {
		if !matches(n.Labels) {
			continue
		}
		key := claim{n.Name, s.Spec.Template.Operation}
		if owner := p.claimed[key]; owner != nil {
			v.conflict(owner)
			p.withdraw(s, n) // it was the set's before the other one selected it
			continue
		}
		p.claimed[key] = s
		v.members = append(v.members, &member{node: n, linked: p.reaches(s, n), rank: rank(s.UID, n.Name)})
	}
	slices.SortFunc(v.members, func(a, b *member) int { return cmp.Compare(a.rank, b.rank) })
	for _, m := range v.members {
		p.classify(s, m)
	}
	if err := v.assign(); err != nil {
		p.report(s, stalled(s, "InvalidSelector", err.Error()))
		return
	}
	for _, m := range v.members {
		p.settle(v, m)
	}
	v.advance(p.Now, &p.changes)
	v.judge()
	if !s.Spec.Paused && !s.Spec.Abort && v.stall == "" {
		p.begin(v)
	}
	p.tidy(v)
	p.report(s, v.status())
	p.expire(v)
}

// reaches reports whether an operation of a set would be taken up by a node now.
func (p *planner) reaches(s *Set, n *Node) bool {
	if n.linked() {
		return true
	}
	rescued := n.rescued(p.Now, s.Spec.Template.Operation)
	if rescued {
		p.changes.again(n.Rescued.Add(rescuedFor))
	}
	return rescued
}

func (p *planner) selector(s *Set) (func(labels.Set) bool, error) {
	if s.Spec.NodePool != "" {
		for _, pool := range p.Pools {
			if pool.Name == s.Spec.NodePool {
				return pool.Matches, nil
			}
		}
		return v1alpha1.PoolMembers{Pool: s.Spec.NodePool}.Selector()
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.NodeSelector)
	if err != nil {
		return nil, fmt.Errorf("spec.nodeSelector: %w", err)
	}
	return func(l labels.Set) bool { return selector.Matches(l) }, nil
}

// rank is the place of a node in the order of a set: not the alphabet's, in which the devices of
// one site are often neighbours.
func rank(set types.UID, node string) uint64 {
	sum := sha256.Sum256([]byte(string(set) + "/" + node))
	return binary.BigEndian.Uint64(sum[:])
}

// withdraw cancels the waiting operations of a node that is no longer the set's.
func (p *planner) withdraw(s *Set, n *Node) {
	for _, o := range p.byNode[n.Name] {
		if o.of(s.UID) && o.Stage != Running {
			p.changes.Delete = append(p.changes.Delete, o)
		}
	}
}

// classify finds the operations and the result of a member.
func (p *planner) classify(s *Set, m *member) {
	m.result = m.node.ended(s)
	if r := m.node.result(s.UID); r != nil && r.Template == s.Template {
		m.begun, m.was = true, r.Wave
	}
	for _, o := range p.byNode[m.node.Name] {
		switch {
		case !o.of(s.UID):
		case o.current(s) && !o.elsewhere(m.node):
			m.op, m.begun, m.was = o, true, o.Origin.Wave
		case o.Stage == Running:
			if m.result != nil && supersedes(o, m.result) {
				m.result = nil
			}
			p.outdated(s, m, o)
		case o.Stage == Ended && !o.elsewhere(m.node) && o.Result == v1alpha1.ResultDone && m.result != nil && supersedes(o, m.result):
			p.superseded(m, o)
		case o.Stage == Ended && !o.elsewhere(m.node) && o.Origin.Template == s.Template && o.Result == v1alpha1.ResultDone && m.result == nil:
			p.record(s, m, o, o.Result, "", "") // it was done after all, before it was tried again
			fallthrough
		default:
			p.changes.Delete = append(p.changes.Delete, o)
			if o.elsewhere(m.node) {
				p.taken[m.node.Name] = true // the next one has the same name
			}
		}
	}
	if m.op != nil {
		p.follow(s, m)
	}
	switch {
	case m.result != nil || m.op != nil:
	case m.node.Unread:
		m.result = p.made(s, m, v1alpha1.ResultRefused, reasonUnread, "the annotation "+v1alpha1.OperationSetsAnnotation+" can't be read: remove it")
	case m.node.result(s.UID) == nil && p.results(m.node) >= v1alpha1.MaxOperationSetResults:
		m.result = p.made(s, m, v1alpha1.ResultRefused, reasonFull, fmt.Sprintf("the node has results of %d sets: delete sets", v1alpha1.MaxOperationSetResults))
	}
}

// supersedes reports whether an operation of an earlier template of the set was made after a result
// for the present one: the template was changed, and changed back.
func supersedes(o *Operation, r *v1alpha1.OperationSetResult) bool {
	return o.Origin.Template != r.Template && o.Origin.Generation > r.Generation
}

// superseded replaces the result of a member which has carried out another template since. The
// operation is deleted once the annotation has its result, and then the present one is made again.
func (p *planner) superseded(m *member, o *Operation) {
	r := v1alpha1.OperationSetResult{OperationSetOrigin: *o.Origin, Result: o.Result, At: metav1.NewTime(p.Now).Rfc3339Copy()}
	r.Withdrawn = false
	p.changes.Record = append(p.changes.Record, Record{Node: m.node.Name, Add: []v1alpha1.OperationSetResult{r}})
	m.result, m.busy = nil, true
}

// results is the number of a node's results of sets that exist.
func (p *planner) results(n *Node) (count int) {
	for _, r := range n.Results {
		if p.sets[types.UID(r.UID)] != nil {
			count++
		}
	}
	return count
}

// follow reads a member's operation.
func (p *planner) follow(s *Set, m *member) {
	o := m.op
	switch {
	case o.Stage == Ended && o.Result == "" && o.Origin.Withdrawn:
		p.changes.Delete = append(p.changes.Delete, o)
		m.op = nil
	case o.Stage == Ended && o.Result == "":
		if m.result == nil {
			p.record(s, m, o, v1alpha1.ResultFailed, reasonCancelled, "the operation was cancelled")
		}
	case o.Stage == Ended:
		reason, message := o.Reason, o.Message
		if o.Result == v1alpha1.ResultDone {
			reason, message = "", ""
		}
		p.record(s, m, o, o.Result, reason, message)
	case m.result != nil && m.result.Result == v1alpha1.ResultDone, // a replica that was paused made it twice
		o.Stage == Waiting && (s.Spec.Paused || s.Spec.Abort):
		if o.Stage == Waiting {
			p.changes.Delete = append(p.changes.Delete, o)
			m.op = nil
		}
	case s.Spec.Abort:
		p.cancel(s, o)
	default:
		p.overdue(s, m)
	}
}

// overdue ends an operation after the deadline of its node.
func (p *planner) overdue(s *Set, m *member) {
	o := m.op
	switch {
	case !p.late(s, o):
		return
	case m.result == nil && o.Stage == Waiting && !m.linked: // it gets another one when it is back
	case m.result == nil:
		p.record(s, m, o, v1alpha1.ResultFailed, reasonDeadline, fmt.Sprintf("the operation did not end within %v", s.deadline()))
	}
	if o.Stage == Waiting {
		p.changes.Delete = append(p.changes.Delete, o)
		m.op = nil
	} else if !o.Cancel {
		p.changes.Cancel = append(p.changes.Cancel, o)
	}
}

// outdated waits for the end of an operation that runs for an earlier state of the set. After its
// deadline it is cancelled, and a node without a link is waited for no longer.
func (p *planner) outdated(s *Set, m *member, o *Operation) {
	if late := p.late(s, o); !late {
		m.busy = true
		p.cancel(s, o)
		return
	}
	m.busy = m.linked
	if !o.Cancel {
		p.changes.Cancel = append(p.changes.Cancel, o)
	}
}

// late reports whether an operation's deadline is over; the plan is made again at that time.
func (p *planner) late(s *Set, o *Operation) bool {
	end := o.Created.Add(s.deadline() + waits(s))
	if p.Now.Before(end) {
		p.changes.again(end)
		return false
	}
	return true
}

// cancel cancels an operation that runs, for abort.
func (p *planner) cancel(s *Set, o *Operation) {
	if s.Spec.Abort && !o.Cancel {
		p.changes.Cancel = append(p.changes.Cancel, o)
	}
}

// made returns a result of now.
func (p *planner) made(s *Set, m *member, result v1alpha1.OperationResult, reason, message string) *v1alpha1.OperationSetResult {
	wave := m.wave
	if m.begun {
		wave = m.was
	}
	return &v1alpha1.OperationSetResult{
		OperationSetOrigin: s.origin(wave, m.node), Result: result, Reason: cut(reason, maxText), Message: cut(message, maxText), At: metav1.NewTime(p.Now).Rfc3339Copy(),
	}
}

// record makes a result the member's, and writes it where the node has another one.
func (p *planner) record(s *Set, m *member, o *Operation, result v1alpha1.OperationResult, reason, message string) {
	r := p.made(s, m, result, reason, message)
	if old := m.result; old != nil && old.Result == r.Result && old.Reason == r.Reason && old.Retry == o.Origin.Retry {
		return
	}
	r.Generation, r.Retry, r.Wave = o.Origin.Generation, o.Origin.Retry, o.Origin.Wave
	m.result = r
	p.changes.Record = append(p.changes.Record, Record{Node: m.node.Name, Add: []v1alpha1.OperationSetResult{*r}})
}

// settle judges a member that has done it and is not Ready.
func (p *planner) settle(v *view, m *member) {
	if m.result == nil || m.result.Result != v1alpha1.ResultDone || m.node.ready() {
		return
	}
	since := m.node.since(p.Now)
	if since.After(m.result.At.Add(v.soak(m.wave))) {
		return // later than the set looks
	}
	m.unsettled = true
	if end := since.Add(v.set.deadline()); p.Now.Before(end) {
		p.changes.again(end)
	} else {
		m.gone = true
	}
}

// begin makes operations for as many members as may run at once.
func (p *planner) begin(v *view) {
	slots := v.parallel()
	for _, m := range v.members {
		if m.running() {
			slots--
		}
	}
	unavailable := p.unavailable(v.set)
	ready := slices.Clone(v.members)
	slices.SortStableFunc(ready, func(a, b *member) int { return cmp.Compare(a.wave, b.wave) })
	for _, m := range ready {
		if slots <= 0 || p.free <= 0 || m.wave > v.wave {
			break
		}
		if !m.pending() || m.op != nil || p.taken[m.node.Name] {
			continue
		}
		if pool := p.budget(v.set, m.node, unavailable); pool != "" {
			v.full = cmp.Or(v.full, fmt.Sprintf("node %s waits for NodePool %s, of which %d nodes are unavailable (spec.maxUnavailablePerPool)", m.node.Name, pool, unavailable[pool]))
			continue
		}
		p.changes.Create = append(p.changes.Create, Create{v.set, m.node, v.set.origin(m.wave, m.node)})
		m.begun, m.was, m.op = true, m.wave, &Operation{Node: m.node.Name, Created: p.Now}
		p.taken[m.node.Name], p.busy[m.node.Name] = true, true
		slots, p.free = slots-1, p.free-1
	}
}

// unavailable is the number of nodes of each pool that have an operation or are not Ready. A node
// that has been offline for longer than the deadline holds up nobody.
func (p *planner) unavailable(s *Set) map[string]int {
	count := map[string]int{}
	for _, n := range p.Nodes {
		if p.down(s, n) {
			for _, pool := range p.pools[n.Name] {
				count[pool]++
			}
		}
	}
	return count
}

func (p *planner) down(s *Set, n *Node) bool {
	if n.linked() {
		return p.busy[n.Name] || !n.ready()
	}
	end := n.since(p.Now).Add(s.deadline())
	if p.Now.Before(end) {
		p.changes.again(end)
		return true
	}
	return false
}

// budget returns the pool in which an operation on a node would leave too few nodes available; "":
// it may begin, and is counted.
func (p *planner) budget(s *Set, n *Node, unavailable map[string]int) (full string) {
	most := max(1, int(s.Spec.MaxUnavailablePerPool))
	if p.down(s, n) {
		most++ // it is counted already
	}
	for _, pool := range p.pools[n.Name] {
		if unavailable[pool] >= most {
			return pool
		}
	}
	if !p.down(s, n) {
		for _, pool := range p.pools[n.Name] {
			unavailable[pool]++
		}
	}
	return ""
}

// tidy deletes operations whose results are in the annotations. A bare drain holds its node for as
// long as the operation is there.
func (p *planner) tidy(v *view) {
	if v.set.Spec.Template.Operation == v1alpha1.OperationDrain {
		return
	}
	keep := keepEnded
	if v.set.Spec.Template.Operation == v1alpha1.OperationUpgrade {
		keep = keepUpgrade
	}
	for _, m := range v.members {
		if m.op == nil || m.op.Stage != Ended || !m.done() || m.unsettled {
			continue
		}
		if r := m.node.ended(v.set); r == nil || r.Result != v1alpha1.ResultDone {
			continue // it is being recorded
		}
		if end := m.result.At.Add(max(keep, v.soak(m.wave)+time.Minute)); p.Now.Before(end) {
			p.changes.again(end)
		} else {
			p.changes.Delete = append(p.changes.Delete, m.op)
		}
	}
}

// expire deletes a set after its time.
func (p *planner) expire(v *view) {
	ttl := v.set.Spec.TTLSecondsAfterFinished
	if ttl == nil || v.stall != "" || len(v.conflicts) > 0 {
		return
	}
	last := v.set.CreationTimestamp.Time
	for _, m := range v.members {
		if m.result == nil || m.unsettled && !m.gone {
			return
		}
		if m.result.At.After(last) {
			last = m.result.At.Time
		}
	}
	if end := last.Add(time.Duration(*ttl) * time.Second); p.Now.Before(end) {
		p.changes.again(end)
	} else {
		p.changes.Expire = append(p.changes.Expire, v.set)
	}
}

// sweep deletes the operations and results of deleted sets.
func (p *planner) sweep() {
	for _, o := range p.Operations {
		if o.Origin == nil {
			continue
		}
		set := types.UID(o.Origin.UID)
		switch {
		case p.sets[set] == nil:
			p.changes.Gone[set] = o.Origin.Set
			if o.Stage != Running {
				p.changes.Delete = append(p.changes.Delete, o)
			}
		case p.nodes[o.Node] != nil && p.claimed[claim{o.Node, o.Kind}] == p.sets[set]:
		case o.Stage != Running || p.late(p.sets[set], o): // the node is gone, or the set selects it no more
			p.changes.Delete = append(p.changes.Delete, o)
		}
	}
	for _, n := range p.Nodes {
		drop := map[types.UID]bool{}
		for _, r := range n.Results {
			if uid := types.UID(r.UID); p.sets[uid] == nil {
				drop[uid], p.changes.Gone[uid] = true, r.Set
			}
		}
		if len(drop) > 0 {
			p.changes.Record = append(p.changes.Record, Record{Node: n.Name, Drop: slices.Sorted(maps.Keys(drop))})
		}
	}
	slices.SortFunc(p.changes.Delete, func(a, b *Operation) int { return cmp.Compare(a.Name, b.Name) })
	p.changes.Delete = slices.CompactFunc(p.changes.Delete, func(a, b *Operation) bool { return a.Name == b.Name })
}

func (p *planner) report(s *Set, status v1alpha1.NodeOperationSetStatus) {
	p.changes.Status = append(p.changes.Status, Status{s, status})
}

// waits is how long an operation may wait on its device for the window of its template, whose days
// are the device's own.
func waits(s *Set) time.Duration {
	const day = 24 * time.Hour
	switch w := s.Spec.Template.Window; {
	case w == nil:
		return 0
	case len(w.Days) == 0:
		return day
	}
	return 7 * day
}
