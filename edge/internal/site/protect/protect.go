// Package protect has the networks that no claim of others may take from this device: the cloud's,
// gateways', name servers', this device's own and those of its site's other devices.
//
// It owns the protected addresses that a device must know without a link, after a boot too: the
// endpoints of links, and the gateways (a device without a default route has lost the route, not
// the gateway). It never forgets except at its bound, where the oldest address is dropped. All
// methods may be called by any goroutine.
package protect

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/claim"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

const (
	// maxKnown bounds the addresses of cloudcore, and of gateways, that are remembered.
	maxKnown = 8
	// listEvery is how old the list of interfaces may be: Services are judged one by one.
	listEvery = 5 * time.Second

	cloudsKey   = "clouds"
	gatewaysKey = "gateways"
)

// Config is where the Networks come from.
type Config struct {
	Memory agent.Memory
	// Fixed are those of the device's files; Site is nil where it has no others.
	Fixed func() []claim.Guard
	Site  *peers.Holder
	// At returns the address of a connected device of the site, else the zero value: an address
	// that a device only reports could take another's.
	At         func(node string) netip.Addr
	Interfaces func() ([]netif.Interface, error)
}

// Networks are the protected ones.
type Networks struct {
	config Config

	mu       sync.Mutex
	loaded   bool
	clouds   []netip.Addr // the newest first
	gateways []netip.Addr
	own      []netip.Addr
	at       time.Time // when the interfaces were read
}

// New makes Networks. It does not read them.
func New(c Config) *Networks { return &Networks{config: c} }

// Guards returns the current guards of claims. remote is the address of the link, the zero value
// without one.
func (n *Networks) Guards(remote netip.Addr) claim.Guards {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.load()
	n.remember(cloudsKey, &n.clouds, remote)
	if now := time.Now(); now.Sub(n.at) >= listEvery {
		n.at = now
		n.readInterfaces()
	}
	guards := append(claim.Standard(), n.config.Fixed()...)
	for _, ip := range n.clouds {
		guards.Host(ip, "an address of cloudcore")
	}
	for _, ip := range n.gateways {
		guards.Host(ip, "a gateway of this device")
	}
	for _, ip := range n.own {
		guards.Host(ip, "an address of this device")
	}
	if n.config.Site == nil || n.config.At == nil {
		return guards
	}
	if s := n.config.Site.Current(); s != nil {
		for _, m := range s.Members {
			guards.Host(n.config.At(m.Node), "an address of device "+m.Node)
		}
	}
	return guards
}

func (n *Networks) load() {
	if n.loaded {
		return
	}
	all, err := n.config.Memory.Load()
	if err != nil {
		klog.Background().Error(err, "Failed to read protected addresses, retrying")
		return
	}
	n.loaded = true
	for key, list := range map[string]*[]netip.Addr{cloudsKey: &n.clouds, gatewaysKey: &n.gateways} {
		if err := json.Unmarshal(all[key], list); err != nil && len(all[key]) > 0 {
			klog.Background().Error(err, "Failed to read protected addresses", "key", key)
		}
	}
}

// remember adds addresses to a list, and writes it down where one is new.
func (n *Networks) remember(key string, list *[]netip.Addr, found ...netip.Addr) {
	fresh := slices.DeleteFunc(slices.Clone(found), func(a netip.Addr) bool { return !a.IsValid() || slices.Contains(*list, a) })
	if len(fresh) == 0 {
		return
	}
	all := slices.Concat(fresh, *list)
	*list = all[:min(len(all), maxKnown)]
	raw, err := json.Marshal(*list)
	if err == nil {
		err = n.config.Memory.Save(context.Background(), map[string][]byte{key: raw})
	}
	if err != nil { // it holds in this process
		klog.Background().Error(err, "Failed to persist protected addresses: they are lost at a restart", "key", key)
	}
}

// readInterfaces reads this device's addresses and gateways; without an answer those that were read
// last count.
func (n *Networks) readInterfaces() {
	all, err := n.config.Interfaces()
	if err != nil {
		klog.Background().Error(err, "Failed to list the network interfaces, using the last list")
		return
	}
	n.own = nil
	var gateways []netip.Addr
	for _, i := range all {
		for _, p := range i.Prefixes {
			n.own = append(n.own, p.Addr())
		}
		if i.Default {
			gateways = append(gateways, i.Gateways...)
		}
	}
	n.remember(gatewaysKey, &n.gateways, gateways...)
}
