// SPDX-License-Identifier: Apache-2.0
// Everything that the daemon knows about tenants, part by part. Each part is given only parts above it.
//
// Owned by the loop's thread.
#pragma once

#include "daemon/gpus/leases.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/mover_seats.h"
#include "daemon/tenants/ports.h"
#include "daemon/tenants/quotas.h"
#include "daemon/tenants/run_suspension.h"
#include "daemon/tenants/standings.h"
#include "daemon/tenants/tenant_mail.h"
#include "daemon/tenants/tenant_table.h"
#include "daemon/tenants/unknown_entries.h"
#include "daemon/tenants/use_books.h"
#include "server/peers/access.h"

namespace gpumux::daemon {

struct TenantParts {
  TenantParts(Leases& leases, const server::AccessRules& access, HostMemory& host_memory)
      : host(host_memory),
        table(leases),
        quotas(leases),
        books(leases, host, table),
        standings(leases, access, jobs, table),
        mover_seats(leases, host_memory, table, mail),
        suspension(leases, host, table) {}
  TenantParts(const TenantParts&) = delete;
  TenantParts& operator=(const TenantParts&) = delete;

  const HostMemory& host;
  JobPort jobs;
  MpsPort mps;
  TenantMail mail;
  UnknownEntries unknown_entries;
  TenantTable table;
  Quotas quotas;
  UseBooks books;
  Standings standings;
  MoverSeats mover_seats;
  RunSuspension suspension;
};

}  // namespace gpumux::daemon
