// Package v1alpha1 holds the kinds of the API group skerry.io, version v1alpha1: the objects that
// an administrator writes for edges, and their status.
//
// It owns the Go types from which the CRDs in manifests/crds and the deep copies are made, and the
// names that both sides must spell alike. It refuses logic: the meaning of a field is documented at
// the field, controllers and agents implement it. Its values are plain. It is above 2,500 lines
// because the kinds of one version of a group are one package.
//
// +kubebuilder:object:generate=true
// +groupName=skerry.io
package v1alpha1
