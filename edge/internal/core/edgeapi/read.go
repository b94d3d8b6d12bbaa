package edgeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// firstVersion divides the versions of the edge (from here on) from kube-apiserver's, so that
// neither is ever mistaken for the other.
const firstVersion = 1_000_000_000_000

// heldWarning is sent with an answer from the device's cache instead of the cluster.
const heldWarning = `299 - "only the objects stored on node %s are listed; the cluster may have more"`

// read answers get, list and watch: from the cache if it is authoritative, else from
// kube-apiserver.
func (s *Server) read(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	if info.Subresource != "" {
		s.pass(w, r)
		return
	}
	rd := &reading{
		ctx:      r.Context(),
		server:   s,
		identity: identityFrom(r.Context()),
		resource: schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource},
		info:     info,
	}
	var err error
	switch info.Verb {
	case "get":
		err = rd.get(w, r)
	case "list":
		err = rd.list(w, r)
	case "watch":
		err = rd.watch(w, r)
	}
	if err != nil {
		writeError(w, r, err)
	}
}

// reading is one get, list or watch. It implements the storage interfaces of the API server's
// handlers.
type reading struct {
	ctx      context.Context // of the request
	server   *Server
	identity Identity
	resource schema.GroupVersionResource
	info     *request.RequestInfo
	held     bool // answer with cached objects, whether or not an interest covers them

	// The Backend's answer to a get or list, asked for before the handler runs: it may be that the
	// request has to pass through.
	object  object.Object
	items   []object.Object
	version uint64
}

func (rd *reading) scope() *handlers.RequestScope { return rd.server.scopes.of(rd.ctx, rd.resource) }

// named selects the one object that the request names.
func (rd *reading) named() object.Selection {
	return object.Selection{
		Resource:  rd.resource,
		Namespace: rd.info.Namespace,
		Labels:    labels.Everything(),
		Fields:    fields.OneTermEqualSelector("metadata.name", rd.info.Name),
	}
}

func (rd *reading) get(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	backend := rd.server.backend
	serve := handlers.GetResource(rd, rd.scope())
	if rd.identity.Device {
		// A watch on the device sees the cached object too; kube-apiserver's copy has a version
		// from which no watch here can resume.
		if items, _, err := backend.List(ctx, rd.named(), metamanager.ListOptions{Held: true}); err == nil && len(items) == 1 {
			rd.object = items[0]
			serve(w, r)
			return nil
		}
	}
	if rd.identity.Token != "" && !backend.Covered(rd.named()) {
		return rd.passOrHeld(w, r, serve)
	}
	if err := rd.allow(ctx, "get"); err != nil {
		return err
	}
	var err error
	rd.object, err = backend.Get(ctx, object.Ref{Resource: rd.resource, Namespace: rd.info.Namespace, Name: rd.info.Name}, rd.identity.caller())
	switch {
	case errors.Is(err, metamanager.ErrPassThrough):
		rd.server.pass(w, r)
		return nil
	case err != nil:
		return err
	}
	serve(w, r)
	return nil
}

// passOrHeld passes a service account's get of an object without an interest to kube-apiserver, so
// that the answer has a version for writing back. If kube-apiserver can't be asked, the device
// answers from the cache, provided that kube-apiserver allowed the account this read before.
func (rd *reading) passOrHeld(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) error {
	ctx := r.Context()
	items, _, err := rd.server.backend.List(ctx, rd.named(), metamanager.ListOptions{Held: true})
	held := err == nil && len(items) == 1
	answer, err := rd.server.forward(r)
	switch {
	case held && (err != nil || unreachable(answer)):
		if denied := rd.allow(ctx, "get"); denied != nil {
			return denied
		}
		rd.object = items[0]
		serve(w, r)
		return nil
	case err != nil:
		return err
	}
	if code := answer.GetCode(); held && (code == http.StatusOK || code == http.StatusForbidden) {
		rd.server.grants.remember(ctx, rd.identity.Token, rd.action("get"), code == http.StatusOK)
	}
	writeAnswer(w, answer)
	return nil
}

func (rd *reading) list(w http.ResponseWriter, r *http.Request) error {
	ctx := r.Context()
	backend := rd.server.backend
	serve := handlers.ListResource(rd, rd, rd.scope(), false, requestTimeout)
	query := r.URL.Query()
	if query.Get("continue") != "" { // the rest of a list that passed through: the edge gives its own lists whole
		rd.server.pass(w, r)
		return nil
	}
	selection, err := rd.selection(query.Get("labelSelector"), query.Get("fieldSelector"))
	if err != nil {
		return err
	}
	reflector := query.Get("resourceVersion") != ""
	if rd.identity.Token != "" && !reflector && !backend.Covered(selection) {
		rd.server.pass(w, r)
		return nil
	}
	if err := rd.allow(ctx, "list"); err != nil {
		return err
	}
	options := metamanager.ListOptions{FromReflector: reflector || rd.identity.Kubelet, Caller: rd.identity.caller()}
	rd.items, rd.version, err = backend.List(ctx, selection, options)
	var answer *topicpb.APIResponse
	if errors.Is(err, metamanager.ErrPassThrough) {
		answer, err = rd.server.forward(r)
	}
	if rd.identity.Device && (err != nil || answer != nil && (answer.GetCode() == http.StatusForbidden || unreachable(answer))) {
		// Root of the device sees everything that kube-apiserver allows the node to see; if that is
		// empty, the cached objects.
		var heldErr error
		if rd.items, rd.version, heldErr = backend.List(ctx, selection, metamanager.ListOptions{Held: true}); heldErr == nil {
			w.Header().Add("Warning", fmt.Sprintf(heldWarning, rd.server.config.NodeName))
			answer, err = nil, nil
		}
	}
	switch {
	case err != nil:
		return err
	case answer != nil:
		writeAnswer(w, answer)
	default:
		serve(w, r)
	}
	return nil
}

func (rd *reading) watch(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	selection, err := rd.selection(query.Get("labelSelector"), query.Get("fieldSelector"))
	if err != nil {
		return err
	}
	if err := rd.allow(r.Context(), "watch"); err != nil {
		return err
	}
	if version := query.Get("resourceVersion"); rd.identity.Device && version != "" && version != "0" && !rd.server.backend.Covered(selection) {
		rd.held = true // it resumes from a list of cached objects
	}
	handlers.ListResource(rd, rd, rd.scope(), true, watchTimeout)(w, r)
	return nil
}

// allow asks whether a service account may read this. The node itself may: the cached objects were
// delivered to it as the node.
func (rd *reading) allow(ctx context.Context, verb string) error {
	if rd.identity.Token == "" {
		return nil
	}
	return rd.server.grants.check(ctx, rd.identity.Token, rd.action(verb))
}

func (rd *reading) action(verb string) action {
	return action{verb: verb, resource: rd.resource, namespace: rd.info.Namespace, name: rd.info.Name}
}

// selection parses the selectors of a request.
func (rd *reading) selection(labelSelector, fieldSelector string) (object.Selection, error) {
	sel := object.Selection{Resource: rd.resource, Namespace: rd.info.Namespace}
	var err error
	if sel.Labels, err = labels.Parse(labelSelector); err != nil {
		return sel, apierrors.NewBadRequest(fmt.Sprintf("unable to parse labelSelector: %v", err))
	}
	if sel.Fields, err = fields.ParseSelector(fieldSelector); err != nil {
		return sel, apierrors.NewBadRequest(fmt.Sprintf("unable to parse fieldSelector: %v", err))
	}
	if rd.info.Name != "" && sel.Fields.Empty() {
		sel.Fields = fields.OneTermEqualSelector("metadata.name", rd.info.Name) // the old way to watch one object: /watch/...
	}
	return sel, rd.checkFields(sel.Fields)
}

// checkFields refuses a selector by a field that the edge doesn't support for the kind: it would
// return a wrong empty answer. For kinds without a Go type it knows the two fields that all kinds
// have; only kube-apiserver knows the other selectable fields of a CustomResourceDefinition.
func (rd *reading) checkFields(selector fields.Selector) error {
	if selector.Empty() {
		return nil
	}
	known := object.Fields(newObject(rd.scope().Kind))
	for _, term := range selector.Requirements() {
		if !known.Has(term.Field) {
			return apierrors.NewBadRequest("field label not supported: " + term.Field)
		}
	}
	return nil
}

// Get implements rest.Getter.
func (rd *reading) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	o, err := object.Decode(rd.object)
	if err != nil {
		return nil, err
	}
	return o, rd.server.adapt(rd.identity, o)
}

// NewList implements rest.Lister.
func (rd *reading) NewList() runtime.Object { return newList(rd.scope().Kind) }

// ConvertToTable implements rest.Lister; the scope's convertor is the one in use.
func (rd *reading) ConvertToTable(ctx context.Context, o, options runtime.Object) (*metav1.Table, error) {
	return rd.scope().TableConvertor.ConvertToTable(ctx, o, options)
}

// List implements rest.Lister. Limit is not kept: the whole list is a valid answer to any limit.
func (rd *reading) List(_ context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	wanted, err := parseVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	items, version := rd.items, rd.version
	switch exact := options.ResourceVersionMatch == metav1.ResourceVersionMatchExact; {
	case wanted != 0 && wanted < firstVersion, exact && wanted < version:
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("the device has no list as of version %d", wanted))
	case wanted > version:
		return nil, storage.NewTooLargeResourceVersionError(wanted, version, retryAfter)
	}
	list := rd.NewList()
	decoded := make([]runtime.Object, len(items))
	for i := range items {
		if decoded[i], err = object.Decode(items[i]); err != nil {
			return nil, fmt.Errorf("decoding %s %s/%s: %w", rd.resource.Resource, items[i].Namespace, items[i].Name, err)
		}
		if err = rd.server.adapt(rd.identity, decoded[i]); err != nil {
			return nil, err
		}
	}
	if err := apimeta.SetList(list, decoded); err != nil {
		return nil, fmt.Errorf("listing %s: %w", rd.resource.Resource, err)
	}
	m, err := apimeta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", rd.resource.Resource, err)
	}
	m.SetResourceVersion(strconv.FormatUint(version, 10))
	return list, nil
}

// Watch implements rest.Watcher.
func (rd *reading) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	selection := object.Selection{Resource: rd.resource, Namespace: rd.info.Namespace, Labels: options.LabelSelector, Fields: options.FieldSelector}
	if selection.Labels == nil {
		selection.Labels = labels.Everything()
	}
	if selection.Fields == nil {
		selection.Fields = fields.Everything()
	}
	from, err := parseVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	// "Get state and start at any" and "start at most recent" both begin with the state, unless the
	// client declines it:
	// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch
	initial := from == 0
	if options.SendInitialEvents != nil {
		initial = *options.SendInitialEvents
	}
	if from != 0 && from < firstVersion && !initial {
		if !rd.identity.Device {
			// The version is of a list that passed through. The interest is created nevertheless:
			// the list that follows this refusal is covered by it.
			if w, err := rd.server.backend.Watch(ctx, selection, metamanager.WatchOptions{Caller: rd.identity.caller()}); err == nil {
				w.Stop()
			} else {
				return nil, statusOf(err)
			}
			return nil, apierrors.NewResourceExpired("the version is of a list that kube-apiserver answered: list again")
		}
		initial = true // a user who watches sees some lines again instead of an error
	}
	opts := metamanager.WatchOptions{From: from, Held: rd.held, Caller: rd.identity.caller()}
	switch {
	case initial:
		opts.From = 0
		opts.InitialEvents = options.SendInitialEvents != nil // the end of the first set is sent only to a client that asked for it
	case from == 0:
		opts.From = rd.server.backend.Version()
	}
	w, err := rd.server.backend.Watch(ctx, selection, opts)
	if apierrors.IsForbidden(err) && rd.identity.Device && !opts.Held {
		opts.Held = true
		w, err = rd.server.backend.Watch(ctx, selection, opts)
	}
	if err != nil {
		return nil, statusOf(err)
	}
	adapt := func(o runtime.Object) error { return rd.server.adapt(rd.identity, o) }
	return newWatcher(w, rd.server.backend.Version, rd.scope().Kind, options.AllowWatchBookmarks, adapt), nil
}

// parseVersion reads a resource version; "" and "0" are 0.
func parseVersion(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid resource version %q: %v", s, errors.Unwrap(err)))
	}
	return v, nil
}
