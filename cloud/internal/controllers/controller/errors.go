package controller

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Class is the meaning of an error for a controller. Every error is retried; the class decides
// whether it is logged, and whether the controller reports it in a status.
type Class string

const (
	// Conflict: the state that was read is not the newest: another writer was first, the object was
	// deleted or made, its namespace is being deleted, or something is not known yet (NotYet).
	Conflict Class = "Conflict"
	// Rejected: kube-apiserver, or an admission policy, refuses the object for its content.
	// Retrying helps only after the object or the policy has changed.
	Rejected Class = "Rejected"
	// Retry: everything else.
	Retry Class = "Retry"
)

// ClassOf returns the class of an error that is not nil. Of joined errors the most severe class
// counts: Retry before Rejected before Conflict.
func ClassOf(err error) Class {
	for err != nil {
		switch e := err.(type) { // nolint:errorlint // each error of the tree is checked itself
		case *notYet:
			return Conflict
		case apierrors.APIStatus:
			return classOfStatus(err)
		case interface{ Unwrap() []error }:
			worst := Conflict
			for _, part := range e.Unwrap() {
				switch c := ClassOf(part); {
				case c == Retry:
					return Retry
				case c == Rejected:
					worst = Rejected
				}
			}
			return worst
		}
		err = errors.Unwrap(err)
	}
	return Retry
}

func classOfStatus(err error) Class {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		return Conflict
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		return Rejected
	}
	return Retry
}

type notYet struct{ error }

func (n *notYet) Unwrap() error { return n.error }

// NotYet marks an error as Conflict: something is not known yet, and will be without anybody's
// help.
func NotYet(err error) error { return &notYet{err} }
