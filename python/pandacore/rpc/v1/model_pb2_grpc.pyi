# Written by scripts/gen_proto.py; edit the .proto file instead.
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pandacore.rpc.v1.model_pb2

class ModelServiceStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Chat: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.model_pb2.ChatRequest, pandacore.rpc.v1.model_pb2.ChatResponse]
    ChatStream: grpc.aio.UnaryStreamMultiCallable[pandacore.rpc.v1.model_pb2.ChatRequest, pandacore.rpc.v1.model_pb2.ChatEvent]
    Embed: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.model_pb2.EmbedRequest, pandacore.rpc.v1.model_pb2.EmbedResponse]
    CountTokens: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.model_pb2.CountTokensRequest, pandacore.rpc.v1.model_pb2.CountTokensResponse]
    ListModels: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.model_pb2.ListModelsRequest, pandacore.rpc.v1.model_pb2.ListModelsResponse]
    Abort: grpc.aio.UnaryUnaryMultiCallable[pandacore.rpc.v1.model_pb2.AbortRequest, pandacore.rpc.v1.model_pb2.AbortResponse]

class ModelServiceServicer:
    async def Chat(self, request: pandacore.rpc.v1.model_pb2.ChatRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.model_pb2.ChatRequest, pandacore.rpc.v1.model_pb2.ChatResponse]) -> pandacore.rpc.v1.model_pb2.ChatResponse: ...
    def ChatStream(self, request: pandacore.rpc.v1.model_pb2.ChatRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.model_pb2.ChatRequest, pandacore.rpc.v1.model_pb2.ChatEvent]) -> AsyncIterator[pandacore.rpc.v1.model_pb2.ChatEvent]: ...
    async def Embed(self, request: pandacore.rpc.v1.model_pb2.EmbedRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.model_pb2.EmbedRequest, pandacore.rpc.v1.model_pb2.EmbedResponse]) -> pandacore.rpc.v1.model_pb2.EmbedResponse: ...
    async def CountTokens(self, request: pandacore.rpc.v1.model_pb2.CountTokensRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.model_pb2.CountTokensRequest, pandacore.rpc.v1.model_pb2.CountTokensResponse]) -> pandacore.rpc.v1.model_pb2.CountTokensResponse: ...
    async def ListModels(self, request: pandacore.rpc.v1.model_pb2.ListModelsRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.model_pb2.ListModelsRequest, pandacore.rpc.v1.model_pb2.ListModelsResponse]) -> pandacore.rpc.v1.model_pb2.ListModelsResponse: ...
    async def Abort(self, request: pandacore.rpc.v1.model_pb2.AbortRequest, context: grpc.aio.ServicerContext[pandacore.rpc.v1.model_pb2.AbortRequest, pandacore.rpc.v1.model_pb2.AbortResponse]) -> pandacore.rpc.v1.model_pb2.AbortResponse: ...

def add_ModelServiceServicer_to_server(
    servicer: ModelServiceServicer, server: grpc.Server | grpc.aio.Server
) -> None: ...
