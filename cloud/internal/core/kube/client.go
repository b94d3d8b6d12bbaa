// Package kube is cloudcore's client of kube-apiserver, as itself, as a node, or with the token of
// a pod, and the shared caches of the resources that it watches.
//
// It owns the connections, the impersonation headers, the reviews of nodes' rights, the stores that
// follow one collection each, and the watches of single objects that are opened as a node. It makes
// no decisions: publish chooses each node's objects, relay the writes. It refuses to lend
// cloudcore's own credentials to a request with a token. Everything here may be used by many
// goroutines at once; a Store's observers are called one after another.
//
// It is above 2,500 lines because the code that follows collections and single objects shares the
// clients, the encoders and the rules for when a watch can be trusted.
package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/pki"
)

// Impersonation is the way in which cloudcore acts as a node.
type Impersonation string

const (
	// Constrained: the header Impersonate-User alone (KEP-5284, on by default since Kubernetes
	// 1.36). kube-apiserver derives a node's groups, and cloudcore needs rights for nodes only,
	// verb by verb.
	Constrained Impersonation = "Constrained"
	// Classic: user and groups, for older clusters. RBAC can't narrow it to nodes.
	Classic Impersonation = "Classic"
)

const (
	authenticated = "system:authenticated"
	jsonContent   = "application/json"
)

// NodeUser is the user name of a node, as Kubernetes has it.
func NodeUser(node types.NodeName) string { return pki.NodeUserPrefix + string(node) }

// nodeGroups are the groups that every node's user is in.
func nodeGroups() []string { return []string{pki.NodesGroup, authenticated} }

// Client is the connections to kube-apiserver. All nodes share one pool of them.
type Client struct {
	own     *rest.Config // cloudcore's own identity, no limit on this side
	base    *url.URL
	http    *http.Client // with cloudcore's credentials
	bare    *http.Client // without credentials: for requests with a token
	mode    Impersonation
	typed   *kubernetes.Clientset
	dynamic *dynamic.DynamicClient

	revisions *Revisions
}

// NewClient makes the clients. It does not connect yet.
func NewClient(config *rest.Config, mode Impersonation) (*Client, error) {
	if mode != Constrained && mode != Classic {
		return nil, fmt.Errorf("impersonation: %q is neither %s nor %s", mode, Constrained, Classic)
	}
	own := rest.CopyConfig(config)
	own.DisableCompression = true
	own.QPS, own.RateLimiter = -1, nil // fairness between nodes is relay's, overload is kube-apiserver's own priority and fairness
	own.ContentType = Protobuf
	own.AcceptContentTypes = Protobuf + "," + jsonContent
	own.Timeout = 0 // watches use these clients; every call has its own ctx, but for those of client-go's informers
	BoundReads(own)
	base, _, err := rest.DefaultServerUrlFor(own)
	if err != nil {
		return nil, fmt.Errorf("address of kube-apiserver: %w", err)
	}
	c := &Client{own: own, base: base, mode: mode}
	if c.http, err = plainClient(own); err != nil {
		return nil, err
	}
	// A client certificate would win over the token of the request: this pool has no certificate.
	if c.bare, err = plainClient(rest.AnonymousClientConfig(own)); err != nil {
		return nil, err
	}
	if c.typed, err = kubernetes.NewForConfigAndClient(own, c.http); err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(own, c.http); err != nil {
		return nil, fmt.Errorf("client of kube-apiserver: %w", err)
	}
	c.revisions = newRevisions(c.revision)
	return c, nil
}

// Revisions notices that kube-apiserver was away, or that the cluster went back in time.
func (c *Client) Revisions() *Revisions { return c.revisions }

func plainClient(config *rest.Config) (*http.Client, error) {
	config = rest.CopyConfig(config)
	config.DisableCompression = true // cloudcore is close to kube-apiserver; under hostile requests for large objects most of its work was to decompress them
	if config.Proxy == nil {
		config.Proxy = http.ProxyFromEnvironment // the default; set explicitly, it keeps client-go from sharing the transport with others
	}
	rt, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("transport to kube-apiserver: %w", err)
	}
	narrow(rt)
	// A redirect would carry headers elsewhere; kube-apiserver sends no redirects for the paths
	// that are used here.
	return &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// Config is a copy of cloudcore's own configuration.
func (c *Client) Config() *rest.Config { return rest.CopyConfig(c.own) }

// Kubernetes is the typed client of cloudcore itself.
func (c *Client) Kubernetes() kubernetes.Interface { return c.typed }

// Dynamic is the client of cloudcore itself for kinds that are not compiled in.
func (c *Client) Dynamic() dynamic.Interface { return c.dynamic }

// AsNode is a configuration whose requests are made as the node. Clients made from it share
// their connections.
func (c *Client) AsNode(node types.NodeName) *rest.Config {
	config := rest.CopyConfig(c.own)
	config.Impersonate = rest.ImpersonationConfig{UserName: NodeUser(node)}
	if c.mode == Classic {
		config.Impersonate.Groups = nodeGroups()
	}
	return config
}

// Identity is the user of a request: a node, the owner of a token, or, when zero, cloudcore itself.
type Identity struct {
	Node  types.NodeName
	Token string // a bearer token; Node is ignored then
}

// Request is one call of kube-apiserver.
type Request struct {
	Method      string
	Path        string // escaped, as in the URL
	Query       string // raw
	ContentType string // of Body
	Accept      string // empty: JSON
	Body        []byte
	// Limit bounds the body of the answer; 0 for MaxResponse.
	Limit int
	// Memory bounds the body of the answer; nil for no bound but Limit. The capacity of
	// Response.Body is held then.
	Memory Memory
}

// Response is kube-apiserver's answer.
type Response struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Err is the failure in the response, as a Kubernetes Status error, or nil.
func (r *Response) Err() error {
	if r.Code >= 200 && r.Code < 300 {
		return nil
	}
	var status metav1.Status
	var err error
	if IsProtobuf(r.Body) {
		kind := schema.GroupVersionKind{Version: "v1", Kind: "Status"}
		err = FromProtobuf(r.Body, kind, &status)
		status.SetGroupVersionKind(kind)
	} else {
		err = json.Unmarshal(r.Body, &status)
	}
	if err == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		if status.Code == 0 {
			status.Code = int32(r.Code)
		}
		return &apierrors.StatusError{ErrStatus: status}
	}
	retry, _ := strconv.Atoi(r.Header.Get("Retry-After"))
	text := string(bytes.ToValidUTF8(r.Body[:min(len(r.Body), 512)], nil))
	return apierrors.NewGenericServerResponse(r.Code, "", schema.GroupResource{}, "", text, retry, true)
}

// Do makes one request and reads the whole answer. An error means that there was no answer; see
// Response.Err for a refusal.
func (c *Client) Do(ctx context.Context, as Identity, r Request) (*Response, error) {
	resp, err := c.send(ctx, as, r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	memory := r.Memory
	if memory == nil {
		memory = unbounded{}
	}
	limit := r.Limit
	if limit == 0 {
		limit = MaxResponse
	}
	body, err := readBody(resp, limit, memory)
	if err != nil {
		return nil, fmt.Errorf("reading the answer to %s %s: %w", r.Method, r.Path, err)
	}
	return &Response{Code: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

func (c *Client) send(ctx context.Context, as Identity, r Request) (*http.Response, error) {
	u, err := c.url(r.Path, r.Query)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if len(r.Body) > 0 {
		body = bytes.NewReader(r.Body)
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("request for %s: %w", r.Path, err)
	}
	if r.ContentType != "" {
		req.Header.Set("Content-Type", r.ContentType)
	}
	accept := r.Accept
	if accept == "" {
		accept = jsonContent
	}
	req.Header.Set("Accept", accept)
	client := c.http
	switch {
	case as.Token != "":
		client = c.bare
		req.Header.Set("Authorization", "Bearer "+as.Token)
	case as.Node != "":
		req.Header.Set("Impersonate-User", NodeUser(as.Node))
		if c.mode == Classic {
			req.Header["Impersonate-Group"] = nodeGroups()
		}
	}
	return client.Do(req)
}

func (c *Client) url(escaped, query string) (*url.URL, error) {
	p, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, fmt.Errorf("path %q: %w", escaped, err)
	}
	u := *c.base
	u.Path = path.Join("/", c.base.Path) + p
	if c.base.Path == "" || c.base.Path == "/" {
		u.Path = p
	}
	u.RawPath = ""
	if escaped != p && (c.base.Path == "" || c.base.Path == "/") {
		u.RawPath = escaped
	}
	u.RawQuery = query
	return &u, nil
}

// revision reads the revision of the cluster's store, consistently, and which kube-apiservers there
// are. answered is false where no kube-apiserver answered: a load balancer's own refusal doesn't
// count, since it has no Audit-Id.
func (c *Client) revision(ctx context.Context) (seen sighting, answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, revisionTimeout)
	defer cancel()
	answer, err := c.Do(ctx, Identity{}, Request{
		Method: http.MethodGet, Path: "/api/v1/nodes", Query: "limit=1",
		Accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
	})
	if err != nil {
		return seen, false, err
	}
	if err := answer.Err(); err != nil {
		return seen, answer.Code < http.StatusInternalServerError || answer.Header.Get("Audit-Id") != "", err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(answer.Body, &list); err != nil {
		return seen, true, fmt.Errorf("reading the cluster's revision: %w", err)
	}
	seen.revision = parseVersion(list.ResourceVersion)
	seen.servers, err = c.servers(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // forbidden: a cluster with the rights of an older Skerry
		return seen, !unanswered(err), err
	}
	return seen, true, nil
}

// servers are the identities of the kube-apiservers that renew their Leases; those of servers that
// are gone stay for an hour.
func (c *Client) servers(ctx context.Context) ([]string, error) {
	leases, err := c.typed.CoordinationV1().Leases(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	if err != nil {
		return nil, fmt.Errorf("reading the Leases of kube-apiservers: %w", err)
	}
	var newest time.Time // by their own clocks
	for _, l := range leases.Items {
		if t := l.Spec.RenewTime; t != nil && t.After(newest) {
			newest = t.Time
		}
	}
	var out []string
	for _, l := range leases.Items {
		if id, t := l.Spec.HolderIdentity, l.Spec.RenewTime; id != nil && t != nil && newest.Sub(t.Time) < time.Minute {
			out = append(out, *id)
		}
	}
	return out, nil
}
