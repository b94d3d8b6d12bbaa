package join

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/common/pki"
)

// KubeletApprover approves the serving certificates of the kubelets of edge nodes, by which
// kube-apiserver verifies the kubelet that it reached. Kubernetes has no approver for them: whether
// a name or address is a node's is for the platform to decide. Here the Node's own status decides,
// as far as no other node has the same. All other nodes' requests are left to the cluster's other
// approvers. One at a time should run; two do no harm.
type KubeletApprover struct {
	client  kubernetes.Interface
	revoked *Revoked // may be nil
	now     func() time.Time
}

// NewKubeletApprover makes an approver. The list of revoked certificates may be nil.
func NewKubeletApprover(client kubernetes.Interface, revoked *Revoked) *KubeletApprover {
	return &KubeletApprover{client, revoked, time.Now}
}

// Run approves and denies until ctx ends. It may be run again.
func (a *KubeletApprover) Run(ctx context.Context) error {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryMin, retryMax))
	defer queue.ShutDown()
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", certificatesv1.KubeletServingSignerName).String()
	}))
	informer := factory.Certificates().V1().CertificateSigningRequests()
	add := func(obj any) {
		if csr, ok := obj.(*certificatesv1.CertificateSigningRequest); ok && waiting(csr) {
			queue.Add(csr.Name)
		}
	}
	if _, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, obj any) { add(obj) },
	}); err != nil {
		return fmt.Errorf("watching certificate requests: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	factory.Start(ctx.Done())
	defer factory.Shutdown() // waits for the informer, which cancel ends
	defer cancel()
	defer context.AfterFunc(ctx, queue.ShutDown)()
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return nil
		}
		csr, err := informer.Lister().Get(name)
		if err == nil {
			err = a.decide(ctx, csr)
		}
		switch {
		case err == nil || apierrors.IsNotFound(err):
			queue.Forget(name)
		case ctx.Err() == nil:
			klog.FromContext(ctx).V(2).Info("Failed to decide on a kubelet's certificate request, retrying", "csr", name, "err", err)
			queue.AddRateLimited(name)
		}
		queue.Done(name)
	}
}

// waiting reports whether csr is a node's and has no decision yet.
func waiting(csr *certificatesv1.CertificateSigningRequest) bool {
	return csr.Spec.SignerName == certificatesv1.KubeletServingSignerName && isRenewal(csr) && len(csr.Status.Certificate) == 0 &&
		!slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
		})
}

// decide approves csr, denies it with a reason, or leaves it alone because the node is no edge. An
// error means that it could not be judged now.
func (a *KubeletApprover) decide(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	if !waiting(csr) {
		return nil
	}
	name := strings.TrimPrefix(csr.Spec.Username, pki.NodeUserPrefix)
	node, err := a.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("looking for the node %s: %w", name, err)
	}
	if _, edge := node.Labels[v1alpha1.EdgeOwnLabel]; !edge {
		return nil
	}
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "SkerryApproved",
		Message: "approved by cloudcore: the names and addresses are the node's", LastUpdateTime: metav1.NewTime(a.now()),
	}
	request, err := parseKubeletCSR(csr)
	var refusal error
	if err == nil && a.revoked != nil {
		err = a.revoked.permit(ctx, types.NodeName(name), csr.CreationTimestamp.Time, false)
		if _, refused := errors.AsType[*pki.Refusal](err); err != nil && !refused {
			return err
		}
	}
	switch {
	case err != nil:
		refusal = err
	case request.Subject.CommonName != csr.Spec.Username:
		refusal = fmt.Errorf("%s may not ask for the certificate of %s", csr.Spec.Username, request.Subject.CommonName)
	default:
		if err := a.addresses(ctx, node, request); err != nil {
			if !isForeign(err) {
				return err
			}
			refusal = err
		}
	}
	if refusal != nil {
		condition.Type, condition.Reason, condition.Message = certificatesv1.CertificateDenied, "SkerryDenied", refusal.Error()
	}
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, condition)
	if _, err := a.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the decision on %s: %w", csr.Name, err)
	}
	if refusal != nil {
		klog.FromContext(ctx).Info("Denied a kubelet's serving certificate", "csr", csr.Name, "node", name, "why", refusal.Error())
	} else {
		klog.FromContext(ctx).Info("Approved a kubelet's serving certificate", "csr", csr.Name, "node", name)
	}
	return nil
}

// parseKubeletCSR holds a request to the rules of the signer kubernetes.io/kubelet-serving.
func parseKubeletCSR(csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	if len(csr.Spec.Request) > pki.MaxCSR {
		return nil, fmt.Errorf("the certificate request has %d bytes, more than %d", len(csr.Spec.Request), pki.MaxCSR)
	}
	block, rest := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("the certificate request is not one PEM block CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate request: %w", err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the certificate request isn't signed by its own key: %w", err)
	}
	if !slices.Equal(request.Subject.Organization, []string{pki.NodesGroup}) {
		return nil, fmt.Errorf("the organization is %q, a kubelet's is %s", request.Subject.Organization, pki.NodesGroup)
	}
	if len(request.EmailAddresses)+len(request.URIs) > 0 || len(request.DNSNames)+len(request.IPAddresses) == 0 {
		return nil, fmt.Errorf("a kubelet's certificate may have names and addresses alone")
	}
	usages := slices.Clone(csr.Spec.Usages)
	slices.Sort(usages)
	usages = slices.Compact(usages)
	least := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	with := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageServerAuth}
	if !slices.Equal(usages, least) && !slices.Equal(usages, with) {
		return nil, fmt.Errorf("the usages are %q; a kubelet's server needs %q", usages, least)
	}
	return request, nil
}

// foreign is a name or address that the node may not have.
type foreign string

func (f foreign) Error() string { return string(f) }

func isForeign(err error) bool { _, ok := errors.AsType[foreign](err); return ok }

// addresses compares the request with the Node's addresses. A Node without them may have them in a
// moment: that is no refusal. An address that a node which is no edge, a Service or kube-apiserver
// has too is refused: it leads there, and clients that trust the cluster's CA would take the device
// for that server. Edges behind different NATs may well have the same.
func (a *KubeletApprover) addresses(ctx context.Context, node *corev1.Node, request *x509.CertificateRequest) error {
	// A node could claim any name at all, such as kube-apiserver's: its certificate is for its name
	// in the cluster.
	for _, name := range request.DNSNames {
		if name != node.Name {
			return foreign(fmt.Sprintf("%s is not the name of the node %s", name, node.Name))
		}
	}
	var ips []net.IP
	for _, address := range node.Status.Addresses {
		if ip := net.ParseIP(address.Address); ip != nil {
			ips = append(ips, ip)
		}
	}
	for _, ip := range request.IPAddresses {
		if ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() {
			return foreign(fmt.Sprintf("%s is no address of a node", ip))
		}
		if !slices.ContainsFunc(ips, ip.Equal) {
			return fmt.Errorf("the address %[2]s is not in the status of node %[1]s", node.Name, ip)
		}
	}
	all, err := a.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	for _, other := range all.Items {
		if _, edge := other.Labels[v1alpha1.EdgeOwnLabel]; edge {
			continue // a device's own claims deny no other one a certificate
		}
		for _, cidr := range other.Spec.PodCIDRs {
			if r, err := netip.ParsePrefix(cidr); err == nil && claim.OfNode(r.Masked(), false, nil) == "" && within(request, cidr) {
				return foreign(fmt.Sprintf("an address that is asked for is in %s, of the pods of %s", cidr, other.Name))
			}
		}
		for _, address := range other.Status.Addresses {
			if asked(request, address.Address) {
				return foreign(fmt.Sprintf("%s is an address of the node %s", address.Address, other.Name))
			}
		}
	}
	return a.cloud(ctx, request)
}

// cloud refuses the addresses of Services and of kube-apiserver.
func (a *KubeletApprover) cloud(ctx context.Context, request *x509.CertificateRequest) error {
	services, err := a.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("listing the services: %w", err)
	}
	for _, s := range services.Items {
		addresses := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			if i.Hostname == "" { // a virtual IP names its pool there: it is of a LAN, and another LAN may use the same
				addresses = append(addresses, i.IP)
			}
		}
		for _, address := range addresses {
			if asked(request, address) {
				return foreign(fmt.Sprintf("%s is the address of the service %s/%s", address, s.Namespace, s.Name))
			}
		}
	}
	ranges, err := a.client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil && !apierrors.IsNotFound(err) { // older clusters have no such kind
		return fmt.Errorf("listing the ranges of services: %w", err)
	}
	if err == nil {
		for _, r := range ranges.Items {
			for _, cidr := range r.Spec.CIDRs {
				if within(request, cidr) {
					return foreign(fmt.Sprintf("an address that is asked for is in %s, of the services", cidr))
				}
			}
		}
	}
	endpoints, err := a.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes", ResourceVersion: "0",
	})
	if err != nil {
		return fmt.Errorf("listing the addresses of kube-apiserver: %w", err)
	}
	for _, s := range endpoints.Items {
		for _, e := range s.Endpoints {
			for _, address := range e.Addresses {
				if asked(request, address) {
					return foreign(fmt.Sprintf("%s is an address of kube-apiserver", address))
				}
			}
		}
	}
	return nil
}

// asked reports whether a request is for an address.
func asked(request *x509.CertificateRequest, address string) bool {
	ip := net.ParseIP(address)
	return ip != nil && slices.ContainsFunc(request.IPAddresses, ip.Equal)
}

// within reports whether a request is for an address of a range.
func within(request *x509.CertificateRequest, cidr string) bool {
	_, prefix, err := net.ParseCIDR(cidr)
	return err == nil && slices.ContainsFunc(request.IPAddresses, prefix.Contains)
}
