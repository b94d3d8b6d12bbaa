package app

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Node has the fields of a node that a plan needs.
type Node struct {
	Name  string
	Ready bool // its condition; never a guess by the text of a message
	// Since is the time of Ready's last change: by the cloud's clock where the node was lost, else
	// when cloudcore first saw it.
	Since time.Time
	// Back is when cloudcore saw it become Ready again; zero if it did not.
	Back   time.Time
	BootID string
	// OutOfService: a person has put the taint node.kubernetes.io/out-of-service on it.
	OutOfService bool
	// Closed: it takes no new pods (cordoned, or tainted by a person).
	Closed bool
	// Edge: it has the label of edge nodes, to which applications are bound.
	Edge bool
	// Pool is its NodePool, Labels its labels, one a line; both only of an edge node.
	Pool, Labels string
}

// Attachment is a VolumeAttachment.
type Attachment struct {
	Name   string
	UID    types.UID
	Node   string
	Volume string // the PersistentVolume's name
}

// Fencer reports whether a node is dead. It must never answer true of one that is cut off only.
type Fencer interface {
	// Dead returns its source.
	Dead(node string) (by string, dead bool)
}

// NoFencer is a Fencer for a cluster without any means to tell a dead device from one that is cut
// off: then only a person can, by the taint node.kubernetes.io/out-of-service.
type NoFencer struct{}

// Dead implements Fencer.
func (NoFencer) Dead(string) (string, bool) { return "", false }

// Replicas returns the nodes with healthy replicas of a volume. known is false where that is
// unknown: no Longhorn, or a volume that is not Longhorn's.
type Replicas func(volume string) (nodes []string, known bool)

// State is everything that a plan is made of.
type State struct {
	App        *v1alpha1.EdgeApp
	Nodes      map[string]Node // those of the cluster
	Pods       []*corev1.Pod   // those of the application's ReplicaSet
	Orphans    []*corev1.Pod   // those of a deleted ReplicaSet of that name
	Removed    []*corev1.Pod   // the last state of pods deleted since the last plan
	ReplicaSet *appsv1.ReplicaSet
	Claims     map[string]*corev1.PersistentVolumeClaim // in its namespace, by name, as far as the application names them
	Fencer     Fencer
	// Storage reads the volumes, only when a node was lost.
	Storage func() (Storage, error)
	// Heard returns the last renewal of a node's Lease; zero without a renewal.
	Heard func(node string) (time.Time, error)
}

// Storage is the state of volumes.
type Storage struct {
	Attachments []Attachment
	Replicas    Replicas
}

// lost reports whether a node is NotReady for at least d, and when it will be.
func (s *State) lost(name string, d time.Duration, now time.Time) (lost bool, at time.Time) {
	n, there := s.Nodes[name]
	if !there || n.Ready {
		return false, time.Time{}
	}
	at = n.Since.Add(d)
	return !now.Before(at), at
}

// dead reports whether a node is known to be dead, and by which source.
func (s *State) dead(name string) (by string, dead bool) {
	if n, there := s.Nodes[name]; there && !n.Ready && n.OutOfService {
		return "the taint " + corev1.TaintNodeOutOfService, true
	}
	if s.Fencer == nil {
		return "", false
	}
	return s.Fencer.Dead(name)
}
