// Package operationset carries NodeOperationSets out: it makes NodeOperations for the nodes of a
// set, in waves and within its bounds, and counts their results.
//
// It owns the NodeOperations that it makes, the annotation skerry.io/operation-sets of Nodes, and
// the status of NodeOperationSets. It refuses to begin an operation on a node without a link, on a
// node whose annotation has a result for the template, and on more nodes than the set's bounds
// allow. Its only memory are those objects, so any replica can take over at any moment.
//
// Plan computes the changes from a State, without requests or time of its own. The controller is a
// level loop of package controller, which calls it from one goroutine at a time.
package operationset

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Set is a NodeOperationSet.
type Set struct {
	*v1alpha1.NodeOperationSet
	Template string // the digest of its template
}

// NewSet returns a Set.
func NewSet(o *v1alpha1.NodeOperationSet) *Set {
	text, _ := json.Marshal(o.Spec.Template) // it was decoded from JSON
	sum := sha256.Sum256(text)
	return &Set{o, hex.EncodeToString(sum[:8])}
}

func (s *Set) deadline() time.Duration {
	if d := s.Spec.NodeDeadline; d != nil {
		return d.Duration
	}
	return 30 * time.Minute
}

// origin is that of an operation which the set makes for a node now.
func (s *Set) origin(wave int, n *Node) v1alpha1.OperationSetOrigin {
	o := v1alpha1.OperationSetOrigin{
		Set: s.Name, UID: string(s.UID), Generation: s.Generation, Template: s.Template, Retry: s.Spec.Retry, Wave: wave,
	}
	if v1alpha1.RightOf(s.Spec.Template.Operation) != "" {
		o.Machine = n.Machine
	}
	return o
}

// OperationName is the name of the NodeOperation of a node. It contains the state of the set, so
// that a replica that was paused can't make a second one.
func OperationName(o v1alpha1.OperationSetOrigin, node string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d/%s", o.UID, o.Template, o.Retry, node))
	const longest = 253 - 1 - 10
	name := o.Set + "-" + node
	return strings.TrimRight(name[:min(len(name), longest)], "-.") + "-" + hex.EncodeToString(sum[:5])
}

// Node is an edge node.
type Node struct {
	Name   string
	UID    types.UID
	Labels labels.Set
	Ready  corev1.ConditionStatus
	Since  time.Time // of the last change of Ready, by the clock of who changed it
	// Machine identifies the hardware; "": unknown.
	Machine string
	Results []v1alpha1.OperationSetResult
	// Rescued is when the device last asked for its upgrades in a rescue session.
	Rescued time.Time
	// Unread: the annotation is there and can't be read. No operation begins here: it may have had
	// a result.
	Unread bool
}

// NewNode reads a Node.
func NewNode(n *corev1.Node) *Node {
	node := &Node{Name: n.Name, UID: n.UID, Labels: n.Labels, Ready: corev1.ConditionUnknown}
	if id := n.Status.NodeInfo.SystemUUID; id != "" {
		sum := sha256.Sum256([]byte(id))
		node.Machine = hex.EncodeToString(sum[:4])
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Ready, node.Since = c.Status, c.LastTransitionTime.Time
		}
	}
	if at, err := time.Parse(time.RFC3339, n.Annotations[v1alpha1.RescuedAtAnnotation]); err == nil {
		node.Rescued = at
	}
	var ok bool
	node.Results, ok = ResultsOf(n.Annotations)
	node.Unread = !ok
	return node
}

// maxAnnotation bounds the annotation that is read, in bytes.
const maxAnnotation = 32 << 10

// ResultsOf reads the annotation of a Node; false if it is invalid.
func ResultsOf(annotations map[string]string) ([]v1alpha1.OperationSetResult, bool) {
	text := annotations[v1alpha1.OperationSetsAnnotation]
	if text == "" {
		return nil, true
	}
	var results []v1alpha1.OperationSetResult
	if len(text) > maxAnnotation || json.Unmarshal([]byte(text), &results) != nil || len(results) > v1alpha1.MaxOperationSetResults {
		return nil, false
	}
	return results, true
}

// linked reports whether the node has a link: its status is its own, and not that of
// kube-controller-manager, which sets Unknown once the Lease has ended.
func (n *Node) linked() bool {
	return n.Ready == corev1.ConditionTrue || n.Ready == corev1.ConditionFalse
}

// rescuedFor is how long a device counts as rescued after it has asked.
const rescuedFor = 2*v1alpha1.RescuedInterval + time.Minute

// rescued reports whether a device without a common version of the protocol is there. It takes up
// upgrades and no other operations (docs/fleet.md). A time in the future is a lie, or the clock's
// of another replica.
func (n *Node) rescued(now time.Time, kind v1alpha1.OperationType) bool {
	return kind == v1alpha1.OperationUpgrade && now.Before(n.Rescued.Add(rescuedFor)) && n.Rescued.Before(now.Add(v1alpha1.RescuedInterval))
}

func (n *Node) ready() bool { return n.Ready == corev1.ConditionTrue }

// since is the time of the last change of Ready, which is never in the future.
func (n *Node) since(now time.Time) time.Time {
	if n.Since.After(now) {
		return now
	}
	return n.Since
}

// result is the node's newest result of a set, of any template.
func (n *Node) result(set types.UID) *v1alpha1.OperationSetResult {
	for i := len(n.Results) - 1; i >= 0; i-- {
		if r := &n.Results[i]; r.UID == string(set) {
			return r
		}
	}
	return nil
}

// ended is the node's result of the set as it is now; nil: no result yet, or it is to be tried
// again.
func (n *Node) ended(s *Set) *v1alpha1.OperationSetResult {
	r := n.result(s.UID)
	if r == nil || n.replaced(r.Machine) || r.Template != s.Template || r.Result != v1alpha1.ResultDone && r.Retry < s.Spec.Retry {
		return nil
	}
	return r
}

// replaced reports whether the node was another machine when something was done there: a device
// that takes over the name of a broken one has none of its versions, configurations and images.
// Only operations that may be repeated name a machine, since boards without an ID of their own have
// another one after each installation.
func (n *Node) replaced(machine string) bool {
	return machine != "" && n.Machine != "" && machine != n.Machine
}

// Stage is the progress of an operation.
type Stage int

// The stages.
const (
	Waiting Stage = iota // the device has not begun
	Running
	Ended
)

// Operation is a NodeOperation. Set is nil for those that no set made.
type Operation struct {
	Name     string
	UID      types.UID
	Revision string
	Node     string
	Kind     v1alpha1.OperationType
	Origin   *v1alpha1.OperationSetOrigin
	Created  time.Time
	Cancel   bool
	Taken    bool // the device has reported of it
	Stage    Stage
	// Result, Reason and Message are those of the end. Result is empty where it was cancelled.
	Result          v1alpha1.OperationResult
	Reason, Message string
	// Digest is of the program that the device found for an upgrade; "": it has found none yet.
	Digest string
}

// NewOperation reads a NodeOperation.
func NewOperation(o *v1alpha1.NodeOperation) *Operation {
	op := &Operation{
		Name: o.Name, UID: o.UID, Revision: o.ResourceVersion, Node: o.Spec.NodeName, Kind: o.Spec.Operation, Created: o.CreationTimestamp.Time,
		Cancel: o.Spec.Cancel, Taken: o.Status.RequestedAt != nil || o.Status.Phase != "",
	}
	if u := o.Status.Upgrade; u != nil {
		op.Digest = cut(u.Digest, len("sha256:")+2*sha256.Size)
	}
	if text := o.Annotations[v1alpha1.OperationSetAnnotation]; text != "" && len(text) < maxAnnotation {
		var origin v1alpha1.OperationSetOrigin
		if json.Unmarshal([]byte(text), &origin) == nil && o.Name == OperationName(origin, o.Spec.NodeName) {
			op.Origin = &origin
		}
	}
	done := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.OperationDone)
	if done == nil {
		return op
	}
	op.Reason, op.Message = done.Reason, done.Message
	switch {
	case done.Status == metav1.ConditionTrue:
		op.Stage, op.Result = Ended, v1alpha1.ResultDone
	case meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.OperationCancelled):
		op.Stage, op.Reason = Ended, "Cancelled"
	case meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.OperationFailed):
		op.Stage, op.Result = Ended, v1alpha1.ResultFailed
		if done.Reason == v1alpha1.OperationRefused || done.Reason == v1alpha1.OperationRejected {
			op.Result = v1alpha1.ResultRefused
		}
	case op.Taken && done.Reason != reasonWaiting:
		op.Stage = Running
	}
	return op
}

// reasonWaiting is the reason of a device's condition Done before it begins.
const reasonWaiting = "Waiting"

// of reports whether the operation is one of a set, of any of its states.
func (o *Operation) of(set types.UID) bool { return o.Origin != nil && o.Origin.UID == string(set) }

// elsewhere reports whether the operation was made for another machine than the node is now.
func (o *Operation) elsewhere(n *Node) bool { return o.Origin != nil && n.replaced(o.Origin.Machine) }

// current reports whether the operation is that of the set as it is now.
func (o *Operation) current(s *Set) bool {
	return o.of(s.UID) && o.Origin.Template == s.Template && o.Origin.Retry == s.Spec.Retry
}

// Pool is a NodePool, by whose members budgets are counted.
type Pool struct {
	Name    string
	Matches func(labels.Set) bool
}

// State is the input of Plan.
type State struct {
	Now        time.Time
	Sets       []*Set
	Nodes      []*Node
	Operations []*Operation
	Pools      []Pool
}

// digest is that of the program which a result is about; "": unknown.
func (s State) digest(node string, r v1alpha1.OperationSetResult) string {
	for _, o := range s.Operations {
		if o.Node == node && o.Origin != nil && o.Origin.UID == r.UID && o.Origin.Template == r.Template && o.Origin.Retry == r.Retry {
			return o.Digest
		}
	}
	return ""
}

// Create is a NodeOperation to make.
type Create struct {
	Set    *Set
	Node   *Node
	Origin v1alpha1.OperationSetOrigin
}

// Record is a change of a Node's annotation.
type Record struct {
	Node string
	Add  []v1alpha1.OperationSetResult
	Drop []types.UID // sets that are gone
}

// Status is the status of a set.
type Status struct {
	Set    *Set
	Status v1alpha1.NodeOperationSetStatus
}

// Changes are the writes of a Plan. All of them may be repeated, and in any order.
type Changes struct {
	Create []Create
	Delete []*Operation // at the version that was seen
	Cancel []*Operation
	Record []Record
	Expire []*Set // whose time after their end is over
	Status []Status
	// Gone are sets that objects name and that were not in the State. Deletes and drops on their
	// behalf must wait until kube-apiserver has confirmed that they are gone.
	Gone map[types.UID]string
	// Again is when the plan changes without a change of the State; zero: never.
	Again time.Time
}

// again asks for another plan at t.
func (c *Changes) again(t time.Time) {
	if c.Again.IsZero() || t.Before(c.Again) {
		c.Again = t
	}
}

// With returns results with one more in the place of the set's former one, the newest last. Those
// of sets that are gone make room first.
func With(results []v1alpha1.OperationSetResult, r Record, exists func(uid string) bool) []v1alpha1.OperationSetResult {
	out := slices.DeleteFunc(slices.Clone(results), func(old v1alpha1.OperationSetResult) bool {
		return slices.Contains(r.Drop, types.UID(old.UID)) || slices.ContainsFunc(r.Add, func(n v1alpha1.OperationSetResult) bool { return n.UID == old.UID })
	})
	out = append(out, r.Add...)
	for i := 0; len(out) > v1alpha1.MaxOperationSetResults && i < len(out); {
		if exists(out[i].UID) {
			i++
		} else {
			out = slices.Delete(out, i, i+1)
		}
	}
	return out[max(0, len(out)-v1alpha1.MaxOperationSetResults):]
}

// older is the order of sets: the first of two that want the same continues.
func older(a, b *Set) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(string(a.UID), string(b.UID)))
}

// cut shortens a device's text, and makes it one line without terminal escapes.
func cut(text string, most int) string { return fleet.Printable(text, most) }

// subject is the object of a template's operation.
func subject(t *v1alpha1.NodeOperationTemplate) string {
	switch {
	case t.Upgrade != nil:
		return strings.TrimSpace(t.Upgrade.Version + " " + t.Upgrade.Digest)
	case t.ImagePull != nil && len(t.ImagePull.Images) == 1:
		return t.ImagePull.Images[0]
	case t.ImagePull != nil && len(t.ImagePull.Images) > 1:
		return fmt.Sprintf("%s and %d more images", t.ImagePull.Images[0], len(t.ImagePull.Images)-1)
	}
	return t.Image
}
