package app

import (
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/machineid"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// base is this device: its files, its identity and its way to the cloud, which every wing uses. Of
// an edgecore whose wiring is only shown the store and the clock are nil.
type base struct {
	config   *edgeconfig.Config
	node     string
	store    *store.Store
	disk     node.Disk
	clock    *pki.Clock
	identity *join.Identity
	dialer   link.Dialer
}

// memory is that of an agent or a module.
func (b *base) memory(name message.Name) agent.Memory { return agent.NewMemory(b.store, string(name)) }

// servers are the hosts of cloudcore: configured, or the one that the device joined.
func (b *base) servers() []string {
	if all := b.config.Modules.EdgeHub.Servers; len(all) > 0 {
		return all
	}
	server := b.identity.Cluster().Server
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		host = strings.Trim(server, "[]") // it was joined without a port
	}
	if host == "" {
		return nil
	}
	return []string{host}
}

// guards returns the addresses of cloudcore and of name servers.
func (b *base) guards() []vip.Guard {
	var all []vip.Guard
	host := func(text, why string) {
		if ip, err := netip.ParseAddr(text); err == nil {
			ip = ip.Unmap().WithZone("")
			all = append(all, vip.Guard{Prefix: netip.PrefixFrom(ip, ip.BitLen()), Why: why})
		}
	}
	for _, server := range b.servers() {
		host(server, "an address of cloudcore")
	}
	for _, ip := range netif.Resolvers(netif.ResolverFiles()...) {
		host(ip.String(), "a name server of this device")
	}
	for _, p := range b.config.Modules.Route.Protected() {
		all = append(all, vip.Guard{Prefix: p, Why: "which edgecore.yaml protects"})
	}
	return all
}

// keepTime keeps the newest time known over a restart, for devices whose clock starts in 1970. It
// is called once a day at most.
func (b *base) keepTime(t time.Time) {
	if b.store != nil {
		_ = b.store.SetLastTime(context.Background(), t) // a full disk: tomorrow's will do
	}
}

// storeConfig is where the store is; key may be nil.
func storeConfig(cfg *edgeconfig.Config, key *diskkey.Key) store.Config {
	file := cfg.Modules.MetaManager.Encryption.KeyFile
	if file == "" {
		file = filepath.Join(cfg.DataDir, "store.key")
	}
	c := store.Config{Path: filepath.Join(cfg.DataDir, "store.db"), KeyFile: file}
	if key != nil {
		c.Key = key.Bytes()
	}
	return c
}

// bootID returns the unique ID of this boot (proc(5)).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// machineID is a digest of this machine's name; "" without one.
func machineID(cfg *edgeconfig.Config) string {
	if name := cfg.Modules.EdgeHub.MachineID; name != "" {
		return machineid.Digest(name)
	}
	return machineid.Read("/")
}
