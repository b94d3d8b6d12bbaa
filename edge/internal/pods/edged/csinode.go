package edged

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedstoragev1 "k8s.io/client-go/kubernetes/typed/storage/v1"
)

// waiting is a client that does not show a missing CSINode without a link, nor one of another Node
// (of an earlier registration). A kubelet that finds such a one at its start writes it, which needs
// the link, and ends the process after six failures, 140 s (csi_plugin.go, initializeCSINode):
// again and again. It waits for one that can't be read; pods run while it waits.
type waiting struct {
	kubernetes.Interface
	linked func() bool
}

type waitingStorage struct {
	typedstoragev1.StorageV1Interface
	client *waiting
}

type waitingNodes struct {
	typedstoragev1.CSINodeInterface
	client *waiting
}

// StorageV1 implements kubernetes.Interface.
func (c *waiting) StorageV1() typedstoragev1.StorageV1Interface {
	return waitingStorage{c.Interface.StorageV1(), c}
}

// CSINodes implements typedstoragev1.StorageV1Interface.
func (c waitingStorage) CSINodes() typedstoragev1.CSINodeInterface {
	return waitingNodes{c.StorageV1Interface.CSINodes(), c.client}
}

// Get implements typedstoragev1.CSINodeInterface.
func (c waitingNodes) Get(ctx context.Context, name string, options metav1.GetOptions) (*storagev1.CSINode, error) {
	o, err := c.CSINodeInterface.Get(ctx, name, options)
	switch {
	case c.client.linked():
		return o, err
	case apierrors.IsNotFound(err):
		return nil, apierrors.NewServiceUnavailable("the CSINode is missing, and is created when there is a link")
	case err != nil:
		return nil, err
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, owner := range o.OwnerReferences {
		if owner.Kind == "Node" && owner.UID != node.UID {
			return nil, apierrors.NewServiceUnavailable("the CSINode is of an earlier Node, and is replaced when there is a link")
		}
	}
	return o, nil
}
