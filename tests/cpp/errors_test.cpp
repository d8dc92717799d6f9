// Statuses as ExecuTorch errors.

#include "errors.h"

#include <gtest/gtest.h>

namespace {

using executorch::runtime::Error;
using weightstream::to_error;

TEST(Errors, EveryStatusHasAnErrorCode) {
  EXPECT_EQ(to_error(WS_OK), Error::Ok);
  for (int status = WS_INVALID_ARGUMENT; status <= WS_INTERNAL; ++status) {
    EXPECT_NE(to_error(static_cast<ws_status>(status)), Error::Ok) << status;
  }
}

TEST(Errors, TheCloseOnesAreTold) {
  EXPECT_EQ(to_error(WS_INVALID_OPTION), Error::InvalidArgument);
  EXPECT_EQ(to_error(WS_BUDGET_TOO_SMALL), Error::OutOfResources);
  EXPECT_EQ(to_error(WS_MISSING), Error::NotFound);
  EXPECT_EQ(to_error(WS_BUSY), Error::InvalidState);
  EXPECT_EQ(to_error(WS_OUT_OF_MEMORY), Error::MemoryAllocationFailed);
  EXPECT_EQ(to_error(static_cast<ws_status>(9999)), Error::Internal);
}

}  // namespace
